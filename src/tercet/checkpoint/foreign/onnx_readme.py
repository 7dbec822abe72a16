"""README.md of a folder of ONNX graphs, with code for onnxruntime."""

from tercet.checkpoint.foreign.export_files import extend_card, sample_text
from tercet.checkpoint.trained_model import TrainedModel
from tercet.models import Classifier, DecoderOnly, EncoderOnly
from tercet.spec import ProblemType

LANGUAGE_MODEL = """
import numpy
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
session = onnxruntime.InferenceSession("this_folder/model.onnx")
ids = tokenizer.encode({text!r}).ids
while len(ids) < {max_len}:  # append the most likely token
    logits = session.run(["logits"], {{"input_ids": numpy.array([ids])}})[0]
    ids.append(int(logits[0, -1].argmax()))
print(tokenizer.decode(ids))
"""

ENCODER = """
import numpy
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
tokenizer.enable_padding(pad_id={pad})
tokenizer.enable_truncation({max_len})
texts = tokenizer.encode_batch(["A sentence.", "Another, longer one."])
inputs = {{"input_ids": numpy.array([text.ids for text in texts])}}
inputs["attention_mask"] = numpy.array([text.attention_mask for text in texts])
{segments}session = onnxruntime.InferenceSession("this_folder/model.onnx")
outputs = dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs)))
"""

SEGMENTS = 'inputs["token_type_ids"] = numpy.array([text.type_ids for text in texts])\n'

TRANSLATOR = """
import numpy
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
source_tokenizer = Tokenizer.from_file("this_folder/{source}")
encoder, decoder = (onnxruntime.InferenceSession(f"this_folder/{{name}}.onnx") for name in ("encoder", "decoder"))
source = numpy.array([source_tokenizer.encode("A sentence.").ids])
mask = numpy.ones_like(source)
memory = encoder.run(["memory"], {{"input_ids": source, "attention_mask": mask}})[0]
ids = [{bos}]
while len(ids) < {max_len} and ids[-1] != {eos}:  # append the most likely token
    inputs = {{"decoder_input_ids": numpy.array([ids]), "memory": memory, "attention_mask": mask}}
    ids.append(int(decoder.run(["logits"], inputs)[0][0, -1].argmax()))
print(tokenizer.decode(ids))
"""

NO_CACHE = "There is no KV cache: each step reads the whole text again, which is slow for long texts."
WORDS = {
    "writing": "Rows of unequal length are padded on the right with any id and need no mask, as attention is causal. "
    f"The scores of a row's next token are at its last token. {NO_CACHE}",
    "reading": "`attention_mask` is 1 at real tokens; padding may be anywhere. Outputs: {outputs}.",
    "translating": "`attention_mask` is 1 at the source's real tokens. Targets of unequal length are padded on the "
    f"right with any id and need no mask. {NO_CACHE}",
}
OUTPUTS = {
    "hidden": "`hidden` (texts, tokens, width)",
    "logits": "`logits`, a score for each token of the vocabulary at each position",
    "pooled": "`pooled`, BERT's pooler",
    "next_sentence": "`next_sentence`, whether the second part follows the first",
    "classes": "`classes`, {classes}",
}
CLASSES: dict[ProblemType, str] = {
    "single_label_classification": "a score for each of {labels}",
    "multi_label_classification": "a score for each of {labels}; a text has the labels with a score above 0",
    "regression": "the number {labels}",
}


def card(trained_model: TrainedModel, outputs: tuple[str, ...]) -> str:
    """Return the content of README.md: the model's card, and code for onnxruntime.

    Args:
        trained_model: Exported model.
        outputs: Names of the outputs of the last graph.
    """
    model, tokenizer = trained_model.model, trained_model.tokenizer
    max_len = model.spec.max_len
    if isinstance(model, DecoderOnly):
        code, words = LANGUAGE_MODEL.format(max_len=max_len, text=sample_text(tokenizer)), WORDS["writing"]
    elif isinstance(model, EncoderOnly):
        segments = SEGMENTS if model.spec.n_segments > 1 else ""
        code = ENCODER.format(max_len=max_len, pad=tokenizer.pad_id or 0, segments=segments)
        head = model.spec.classifier or Classifier()
        classes = CLASSES[head.problem_type].format(labels=", ".join(head.labels))
        descriptions = [OUTPUTS[name].format(classes=classes) for name in outputs]
        words = WORDS["reading"].format(outputs="; ".join(descriptions))
    else:
        has_source_tokenizer = trained_model.source_tokenizer is not tokenizer
        source = "source_tokenizer.json" if has_source_tokenizer else "tokenizer.json"
        code = TRANSLATOR.format(max_len=max_len, source=source, bos=tokenizer.bos_id, eos=tokenizer.eos_id)
        words = WORDS["translating"]
    return extend_card(trained_model, "onnxruntime", code, words)
