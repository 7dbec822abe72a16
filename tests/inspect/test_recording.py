"""Reading texts as in training for each model family. Displayed tokens are those of the input."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tercet.checkpoint import Card, TrainedModel, load_model, save_model
from tercet.config import UserError
from tercet.inspect import Recording, read
from tercet.inspect.attribution_table import attribution_to_dict
from tercet.inspect.edit_effect import read_with_edits
from tercet.inspect.heads import ablate_heads
from tercet.inspect.lens_table import lens_table
from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    Edit,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.tokens import Characters, Tokenizer

STACK = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=31)
TOKENIZER = Tokenizer.train(Characters(alphabet="abc<>/sript [", pad=True, bos=True, eos=True, mask=True), [])
V, ROOM = TOKENIZER.vocab_size, 13


def trained_model(folder: Path, family: str) -> TrainedModel:
    spec = {"vocab_size": V, "max_len": ROOM}
    model: AnyModel
    match family:
        case "gpt":
            model = DecoderOnly(DecoderOnlySpec(stack=STACK, **spec))
        case "bert":
            head = MaskedHead(transform=True, bias=True)
            model = EncoderOnly(EncoderOnlySpec(stack=STACK, masked_head=head, **spec))
        case "mute":
            model = EncoderOnly(EncoderOnlySpec(stack=STACK, masked_head=None, **spec))
        case _:
            model = EncoderDecoder(EncoderDecoderSpec(encoder=STACK, decoder=STACK, **spec))
    torch.manual_seed(4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    save_model(folder, model, TOKENIZER, Card(name=family))
    return load_model(folder)


def side_texts(recording: Recording) -> dict[str, list[str]]:
    return {name: side.texts for name, side in recording.sides.items()}


@pytest.mark.slow
def test_each_family_reads_as_in_training(tmp_path: Path) -> None:
    bos, eos = (TOKENIZER.tokens([number])[0] for number in (TOKENIZER.bos_id, TOKENIZER.eos_id))
    gpt, bert = (trained_model(tmp_path / name, name) for name in ("gpt", "bert"))
    assert side_texts(read(gpt, "ab c")) == {"stack": ["a", "b", " ", "c"]}
    masked_recording = read(bert, "a[MASK]c")
    assert side_texts(masked_recording)["stack"] == [bos, "a", TOKENIZER.mask_token, "c", eos]
    translator = trained_model(tmp_path / "both", "both")
    recording = read(translator, "ab", target="cab")
    assert side_texts(recording) == {"encoder": ["a", "b", eos], "decoder": [bos, "c", "a", "b"]}
    assert recording.side is recording.sides["decoder"]
    for family_model, texts in ((gpt, ["ab c"]), (bert, ["abc"]), (translator, ["ab", "cab"])):
        recording = read(family_model, texts[0], target=texts[1] if len(texts) > 1 else None)
        rows = [torch.tensor([side.ids]) for side in recording.sides.values()]
        with torch.inference_mode():
            expected = family_model.model(*rows)[0]
        assert recording.logits is not None
        torch.testing.assert_close(recording.logits, expected, atol=1e-5, rtol=0)
        weights = recording.activations[f"{list(recording.sides)[-1]}.blocks.1.self_attention.weights"]
        assert weights.shape == (1, 4, len(recording.side.ids), len(recording.side.texts))


@pytest.mark.slow
def test_a_translator_without_a_target_generates_it(tmp_path: Path) -> None:
    translator = trained_model(tmp_path / "both", "both")
    recording = read(translator, "ab")
    ids, logits = recording.side.ids, recording.logits
    assert ids[0] == TOKENIZER.bos_id
    assert TOKENIZER.eos_id not in ids
    assert logits is not None
    scores = logits.clone()
    scores[:, [TOKENIZER.bos_id, TOKENIZER.pad_id]] = -torch.inf
    assert scores.argmax(-1)[:-1].tolist() == list(ids[1:])


def test_ids_replace_the_text_and_html_stays_text(tmp_path: Path) -> None:
    gpt = trained_model(tmp_path / "gpt", "gpt")
    text = "<script>"
    recording = read(gpt, text)
    assert "".join(recording.side.texts) == text
    recording_of_ids = read(gpt, "ignored", ids=recording.side.ids)
    assert recording_of_ids.logits is not None
    assert recording.logits is not None
    assert torch.equal(recording_of_ids.logits, recording.logits)
    assert not read(gpt, text).truncated
    long = read(gpt, "ab" * 7)
    assert long.truncated
    assert long.side.texts == list(("ab" * 7)[-ROOM:])  # a prompt keeps its end
    bert = read(trained_model(tmp_path / "bert", "bert"), "ab" * 7)
    assert bert.truncated
    assert "".join(bert.side.texts[1:-1]) == ("ab" * 7)[: ROOM - 2]


def test_edits_apply_also_to_an_encoder_without_a_head(tmp_path: Path) -> None:
    gpt = trained_model(tmp_path / "gpt", "gpt")
    edit = Edit(name="stack.blocks.0.self_attention.heads", heads=(2,))
    before, after = read_with_edits(gpt, "abca", edits=[edit])
    assert (after.activations[edit.name][:, 2] == 0).all()
    assert before.logits is not None
    assert after.logits is not None
    assert not torch.allclose(after.logits, before.logits)
    mute = read(trained_model(tmp_path / "mute", "mute"), "abc")
    assert mute.logits is None
    assert mute.activations["stack.final_norm"].shape == (1, 5, 24)


def test_an_edited_translator_reads_the_given_target(tmp_path: Path) -> None:
    edit = Edit(name="decoder.blocks.0.self_attention.heads", heads=(2,))
    before, after = read_with_edits(trained_model(tmp_path / "both", "both"), "ab", target="cab", edits=[edit])
    assert after.target_ids == before.target_ids == (TOKENIZER.bos_id, *TOKENIZER.encode("cab"))


@pytest.mark.slow
def test_the_lens_table_ends_with_the_models_predictions(tmp_path: Path) -> None:
    for family in ("gpt", "bert", "both"):
        family_model = trained_model(tmp_path / family, family)
        recording = read(family_model, "abcab")
        table = lens_table(family_model, recording, top=3)
        assert recording.logits is not None
        best = recording.logits.softmax(-1).topk(3)
        assert len(table.lens) == 3
        last = list(table.lens.values())[-1]
        assert last.ids == best.indices.tolist()
        torch.testing.assert_close(last.probabilities, best.values)
        assert len(table.losses) == len(recording.side.ids) == len(last.ids)
        if family == "bert":
            assert table.loss is None
            assert ablate_heads(family_model, recording) == {}
            continue
        expected = -recording.logits.log_softmax(-1)[range(len(table.losses) - 1), list(recording.side.ids[1:])]
        torch.testing.assert_close(torch.tensor(table.losses[:-1]), expected)
        assert table.losses[-1] is None
        assert table.loss == pytest.approx(expected.mean().item(), abs=1e-5)
        name = f"{recording.stack}.blocks.1.self_attention"
        _, without = read_with_edits(family_model, "abcab", edits=[Edit(name=f"{name}.heads", heads=(1,))])
        loss_without_head = lens_table(family_model, without).loss
        assert loss_without_head is not None
        assert ablate_heads(family_model, recording)[name][1] == pytest.approx(loss_without_head - table.loss, abs=1e-5)
        attribution = attribution_to_dict(family_model, recording, row=None, text=None)
        row, token = attribution["row"], attribution["id"]
        assert (row, token) == (len(last.ids) - 1, last.ids[-1][0])
        assert attribution["logit"] == pytest.approx(float(recording.logits[row, token]), abs=1e-4)


@pytest.mark.slow
def test_unsuitable_arguments_are_rejected(tmp_path: Path) -> None:
    gpt, bert, translator = (trained_model(tmp_path / name, name) for name in ("gpt", "bert", "both"))
    for family_model, how, words in (
        (gpt, {"text": "a", "target": "b"}, "a target is for translators"),
        (gpt, {"ids": [V]}, f"the vocabulary has no id {V}; ids are 0 to {V - 1}"),
        (gpt, {"ids": []}, "the list of ids is empty"),
        (gpt, {"ids": [1] * 14}, "14 ids do not fit into the context of 13 tokens"),
        (translator, {"text": ""}, "the text is empty; pass at least one word"),
        (translator, {"text": "a", "target_ids": [-1]}, "the vocabulary has no id -1"),
    ):
        with pytest.raises(UserError, match=words):
            read(family_model, **how)
    with pytest.raises(UserError, match=r"did you mean 'stack\.blocks\.1'"):
        read_with_edits(gpt, "a", edits=[Edit(name="stack.block.1")])
    with pytest.raises(UserError, match="use the logit lens instead"):
        attribution_to_dict(bert, read(bert, "a"), row=0, text=None)
    with pytest.raises(UserError, match="'ab' is 2 tokens: 'a', 'b'; pass one token"):
        attribution_to_dict(gpt, read(gpt, "a"), row=0, text="ab")
