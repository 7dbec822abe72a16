"""Response schemas: OpenAI's formats, and for other routes the fields of the command's output with `--json`."""

from typing import Literal

from pydantic import BaseModel

FinishReason = Literal["stop", "length"]


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptUsage(BaseModel):
    """Number of tokens that the model read, without bos and eos, and how many were cut.

    `chunks` is the number of chunks that were read, with one for each text that was not split. Tokens that two chunks
    share count in both.
    """

    prompt_tokens: int
    total_tokens: int
    chunks: int
    truncated_texts: int
    truncated_tokens: int


class ModelCard(BaseModel):
    """A model of the server; the languages are those of a translator's training data if its settings name them."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tercet"
    kind: str
    context: int
    parameters: int
    routes: list[str]
    folder: str | None
    source_language: str | None
    target_language: str | None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class CompletionLogprobs(BaseModel):
    """Parallel lists with one entry per token; the first token of an echoed prompt has no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionDelta(BaseModel):
    """The new part of one text of a completion."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    seed: int


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    seed: int


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(TopLogprob):
    """The text of a token, its natural log-probability, and the likeliest tokens at its position."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]


class MessageDelta(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str = ""


class ChatDelta(BaseModel):
    """The new part of one chat answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    seed: int = 0


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    seed: int


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class EmbeddingItem(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingsResponse(BaseModel):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: PromptUsage


class SearchNeighbor(BaseModel):
    """A document, or a chunk of it, and its cosine similarity to the query.

    `index` is the number of the document from 0, `id` its path or other id, and `start` and `end` are the places of the
    first character and the end of the chunk. Values that are not stored are null.
    """

    index: int
    id: str | int | None
    start: int | None
    end: int | None
    score: float
    text: str | None


class SearchedQuery(BaseModel):
    """The documents or chunks that are most similar to a query, the most similar first."""

    query: str
    neighbors: list[SearchNeighbor]


class SearchResponse(BaseModel):
    model: str
    usage: PromptUsage
    answers: list[SearchedQuery]


class TranslationChoice(BaseModel):
    """A translation; for a text of several lines, score, logprob and tokens are sums over the lines."""

    text: str
    score: float
    logprob: float
    tokens: int
    finish: Literal["eos", "length"]


class TranslatedText(BaseModel):
    """The translations of one text, best first."""

    source: str
    translations: list[TranslationChoice]
    truncated: bool


class TranslateResponse(BaseModel):
    model: str
    answers: list[TranslatedText]


class MaskCandidate(BaseModel):
    word: str
    ids: list[int]
    probability: float
    text: str


class FilledText(BaseModel):
    """The candidates for each mask of a text, likeliest first."""

    text: str
    masks: list[list[MaskCandidate]]
    truncated: bool


class FillResponse(BaseModel):
    model: str
    answers: list[FilledText]


class ClassifiedText(BaseModel):
    label: str
    probability: float
    scores: dict[str, float]
    text: str
    truncated: bool
    chunks: int


class MultiLabeledText(BaseModel):
    """The labels above the threshold, and the probability of every label."""

    labels: dict[str, float]
    scores: dict[str, float]
    text: str
    truncated: bool
    chunks: int


class RegressedText(BaseModel):
    """A number, in the unit of the training labels."""

    value: float
    text: str
    truncated: bool
    chunks: int


class TaggedWord(BaseModel):
    """A word and its label; the label is null beyond the maximum length of the model."""

    word: str
    label: str | None
    probability: float | None
    scores: dict[str, float] | None


class TaggedText(BaseModel):
    text: str
    words: list[TaggedWord]
    truncated: bool


class ClassifyResponse(BaseModel):
    model: str
    usage: PromptUsage
    answers: list[ClassifiedText] | list[MultiLabeledText] | list[RegressedText] | list[TaggedText]


class RerankedText(BaseModel):
    text: str


class RerankResult(BaseModel):
    """A document, by its position in the request, and its relevance to the query."""

    index: int
    relevance_score: float
    document: RerankedText | None
    truncated: bool


class RerankResponse(BaseModel):
    """The documents of a request, the most relevant first."""

    model: str
    usage: PromptUsage
    results: list[RerankResult]


class HealthResponse(BaseModel):
    status: Literal["alive", "stalled"]


class ReadyResponse(BaseModel):
    status: Literal["ready", "closing"]
    models: int
