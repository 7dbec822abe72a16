"""Export of a folder for CTranslate2: its own specifications, filled with the model's tensors.

The `Translator`, `Generator` and `Encoder` of CTranslate2 (Klein et al., "The OpenNMT toolkit", 2020) have more options
than the classes of `transformers`: norms before, after or on both sides of a sublayer, layer or RMS norms, gated
networks, grouped heads, all position schemes. Stacks are converted tensor by tensor: queries, keys and values become
one matrix, and fixed positions a table. The only exported head of an encoder is BERT's pooler.

model.bin                      tensors
config.json                    special tokens, and the epsilon of the norms
vocabulary.json                tokens by id; for a translator in shared_vocabulary.json, or in
                               source_vocabulary.json and target_vocabulary.json
tokenizer.json                 splits text into these tokens
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint.foreign.ctranslate2_readme import card
from tercet.checkpoint.foreign.ctranslate2_stack import decoder_of, encoder_of, fill_linear, fill_stack
from tercet.checkpoint.foreign.ctranslate2_support import ctranslate2_support, norm_epsilon
from tercet.checkpoint.foreign.ctranslate2_vocabulary import Vocabulary
from tercet.checkpoint.foreign.export_files import check_translates, import_library, tokenizer_files
from tercet.checkpoint.trained_model import TrainedModel
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly
from tercet.models.vocabulary import TokenEmbedding
from tercet.storage import write_atomically

POOLER_ACTIVATIONS = {"tanh": "Tanh", "relu": "RELU"}


def ctranslate2_writer(trained_model: TrainedModel) -> Callable[[Path], None]:
    """Prepare the export, and return the function that writes it into a folder.

    Raises:
        UserError: If CTranslate2 does not support a feature of the model, which the message contains, or if its package
            is not installed.
    """
    model = trained_model.model
    tokenizer = trained_model.tokenizer
    support = ctranslate2_support(
        model.spec, has_end=tokenizer.eos_id is not None, forced_bos_id=tokenizer.forced_bos_id
    )
    support.check()
    check_translates(trained_model)
    specs = import_library("ctranslate2.specs", "ctranslate2")
    with torch.no_grad():
        if isinstance(model, DecoderOnly):
            spec = _generator(specs, model, trained_model)
        elif isinstance(model, EncoderOnly):
            spec = _encoder(specs, model, trained_model)
        else:
            spec = _translator(specs, model, trained_model)
    spec.config.layer_norm_epsilon = norm_epsilon(model.spec)
    spec.validate()
    spec.optimize()  # stores a tied tensor once
    files = {**tokenizer_files(trained_model), "README.md": card(trained_model)}

    def write(folder: Path) -> None:
        for name, text in files.items():
            write_atomically(folder / name, text.encode())
        spec.save(str(folder))
        for path in folder.iterdir():  # the library does not flush its files to disk
            with path.open("rb") as file:
                os.fsync(file.fileno())

    return write


def _generator(specs: Any, model: DecoderOnly, trained_model: TrainedModel) -> Any:
    vocabulary = Vocabulary.of(trained_model.tokenizer, ends=True)
    decoder = decoder_of(specs, model.stack, cross=False)
    fill_stack(decoder, model.stack, max_len=model.max_len)
    _embed(decoder, decoder.embeddings, model.embedding, vocabulary)
    _unembed(decoder, model, vocabulary)
    spec = specs.TransformerDecoderModelSpec(decoder)
    spec.register_vocabulary(vocabulary.tokens)
    _name_special(spec.config, vocabulary)
    return spec


def _encoder(specs: Any, model: EncoderOnly, trained_model: TrainedModel) -> Any:
    vocabulary = Vocabulary.of(trained_model.tokenizer)
    segments = model.spec.n_segments > 0
    encoder = encoder_of(specs, model.stack, tables=1 + segments)
    fill_stack(encoder, model.stack, max_len=model.max_len)
    # CTranslate2 would also scale the segment embeddings, so the token embeddings are stored with their scale.
    encoder.embeddings[0].weight = vocabulary.rows(model.embedding.weight) * model.embedding.scale
    encoder.scale_embeddings = False
    if segments:
        encoder.embeddings[1].weight = model.segment_embedding.weight
    activation = POOLER_ACTIVATIONS[model.spec.pooler_activation]
    spec = specs.TransformerEncoderModelSpec(
        encoder, pooling_layer=model.spec.pooler, pooling_activation=getattr(specs.Activation, activation)
    )
    if model.spec.pooler:
        fill_linear(spec.pooler_dense, model.pooler.dense)
    spec.register_vocabulary(vocabulary.tokens)
    _name_special(spec.config, vocabulary)
    return spec


def _translator(specs: Any, model: EncoderDecoder, trained_model: TrainedModel) -> Any:
    vocabulary, source_vocabulary = (
        Vocabulary.of(trained_model.tokenizer),
        Vocabulary.of(trained_model.source_tokenizer),
    )
    encoder, decoder = encoder_of(specs, model.encoder), decoder_of(specs, model.decoder, cross=True)
    for side, stack, table, embedding, tokens in (
        (encoder, model.encoder, encoder.embeddings[0], model.source_embedding, source_vocabulary),
        (decoder, model.decoder, decoder.embeddings, model.embedding, vocabulary),
    ):
        fill_stack(side, stack, max_len=model.max_len)
        _embed(side, table, embedding, tokens)
    _unembed(decoder, model, vocabulary)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(source_vocabulary.tokens)
    spec.register_target_vocabulary(vocabulary.tokens)
    _name_special(spec.config, vocabulary)
    spec.config.decoder_start_token = vocabulary.bos
    return spec


def _name_special(config: Any, vocabulary: Vocabulary) -> None:
    config.bos_token, config.eos_token, config.unk_token = vocabulary.bos, vocabulary.eos, vocabulary.unk


def _embed(stack_spec: Any, table: Any, embedding: TokenEmbedding, vocabulary: Vocabulary) -> None:
    table.weight = vocabulary.rows(embedding.weight)
    stack_spec.scale_embeddings = embedding.scale


def _unembed(decoder: Any, model: DecoderOnly | EncoderDecoder, vocabulary: Vocabulary) -> None:
    unembedding = model.unembedding
    decoder.projection.weight = vocabulary.rows(unembedding.weight)
    if (bias := vocabulary.bias(unembedding.bias)) is not None:
        decoder.projection.bias = bias
    if unembedding.softcap is not None:
        decoder.final_logit_softcapping = unembedding.softcap
