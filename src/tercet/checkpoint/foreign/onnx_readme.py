"""README.md of a folder of ONNX graphs, with code for onnxruntime."""

from tercet.checkpoint.foreign.export_files import extend_card, sample_text
from tercet.checkpoint.trained_model import TrainedModel
from tercet.models import Classifier, DecoderOnly, EncoderOnly, StackSpec
from tercet.spec import ProblemType

LANGUAGE_MODEL = """
import numpy
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("this_folder/tokenizer.json")
session = onnxruntime.InferenceSession("this_folder/model.onnx")
ids, n_read = tokenizer.encode({text!r}).ids, 0
past = {{x.name: numpy.zeros({shape}, "float32") for x in session.get_inputs()[3:]}}
while len(ids) < {max_len}:  # append the most likely token
    inputs = {{"input_ids": numpy.array([ids[n_read:]]), "attention_mask": numpy.ones((1, len(ids)), "int64")}}
    inputs["position_ids"] = numpy.arange(n_read, len(ids))[None]
    logits, *present = session.run(None, {{**inputs, **past}})
    past, n_read = dict(zip(past, present)), len(ids)
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
encoder = onnxruntime.InferenceSession("this_folder/encoder_model.onnx")
decoder = onnxruntime.InferenceSession("this_folder/decoder_model_merged.onnx")
source = numpy.array([source_tokenizer.encode("A sentence.").ids])
mask = numpy.ones_like(source)
memory = encoder.run(None, {{"input_ids": source, "attention_mask": mask}})[0]
past = {{x.name: numpy.zeros({shape}, "float32") for x in decoder.get_inputs()[3:]}}
ids, n_read = {opening}, 0
while len(ids) < {max_len} and ids[-1] != {eos}:  # append the most likely token
    inputs = {{"input_ids": numpy.array([ids[n_read:]]), "encoder_hidden_states": memory}}
    logits, *present = decoder.run(None, {{**inputs, "encoder_attention_mask": mask, **past}})
    past, n_read = dict(zip(past, present)), len(ids)
    ids.append(int(logits[0, -1].argmax()))
print(tokenizer.decode(ids))
"""

CACHE = (
    "The keys and values in `present` are the `past_key_values` of the next call, so that each token is read once. In "
    "the first call their length is 0, and they have the shape {shape} for one text."
)
CONFIG = (
    'optimum opens the folder by `{optimum}.from_pretrained`, and transformers.js by the option `subfolder: ""`, or '
    'if the graphs are moved to a subfolder `onnx`. Every model has a config.json of the type "{model_type}", which '
    "contains the sizes of the cache but does not describe the architecture. Classes of transformers that read weights "
    "cannot open this folder."
)
WORDS = {
    "writing": f"{CACHE} Texts of unequal length are padded on the left with any id: `attention_mask` is 0 at padding "
    "and covers the past and the new tokens, and `position_ids` is the number of real tokens before each new one.\n\n"
    f"{CONFIG}",
    "reading": "`attention_mask` is 1 at real tokens; padding may be anywhere. Outputs: {outputs}.",
    "translating": f"{CACHE} `attention_mask` is 1 at the source's real tokens. Targets have no mask: padding on their "
    f"right has no effect on the logits before it, but must not become part of the past.\n\n{CONFIG}",
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
    if isinstance(model, EncoderOnly):
        segments = SEGMENTS if model.spec.n_segments > 1 else ""
        code = ENCODER.format(max_len=max_len, pad=tokenizer.pad_id or 0, segments=segments)
        head = model.spec.classifier or Classifier()
        classes = CLASSES[head.problem_type].format(labels=", ".join(head.labels))
        descriptions = [OUTPUTS[name].format(classes=classes) for name in outputs]
        words = WORDS["reading"].format(outputs="; ".join(descriptions))
    elif isinstance(model, DecoderOnly):
        shape = _empty_past(model.spec.stack)
        code = LANGUAGE_MODEL.format(max_len=max_len, text=sample_text(tokenizer), shape=shape)
        words = WORDS["writing"].format(shape=shape, optimum="ORTModelForCausalLM", model_type="gemma")
    else:
        has_source_tokenizer = trained_model.source_tokenizer is not tokenizer
        source = "source_tokenizer.json" if has_source_tokenizer else "tokenizer.json"
        shape = _empty_past(model.spec.decoder)
        code = TRANSLATOR.format(
            max_len=max_len, source=source, opening=tokenizer.target_opening, eos=tokenizer.eos_id, shape=shape
        )
        words = WORDS["translating"].format(shape=shape, optimum="ORTModelForSeq2SeqLM", model_type="t5")
        if has_source_tokenizer:
            words += " Both use tokenizer.json for the target only; the source is split by source_tokenizer.json."
    return extend_card(trained_model, "onnxruntime", code, words)


def _empty_past(stack: StackSpec) -> str:
    return str((1, stack.kv_heads, 0, stack.head_width))
