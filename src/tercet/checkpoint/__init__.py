"""Trained models as folders that any program can read: JSON and safetensors, no pickle."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.checkpoint.card import Card as Card
    from tercet.checkpoint.card import current_versions as current_versions
    from tercet.checkpoint.card import git_commit as git_commit
    from tercet.checkpoint.conversion import convert as convert
    from tercet.checkpoint.export_problems import export_problems as export_problems
    from tercet.checkpoint.folder import load_model as load_model
    from tercet.checkpoint.folder import read_card as read_card
    from tercet.checkpoint.folder import read_spec as read_spec
    from tercet.checkpoint.folder import save_model as save_model
    from tercet.checkpoint.folder import save_trained as save_trained
    from tercet.checkpoint.folder import tokenizer_hash as tokenizer_hash
    from tercet.checkpoint.foreign.bert import from_bert as from_bert
    from tercet.checkpoint.trained_model import Encoder as Encoder
    from tercet.checkpoint.trained_model import LanguageModel as LanguageModel
    from tercet.checkpoint.trained_model import TaskKind as TaskKind
    from tercet.checkpoint.trained_model import TrainedModel as TrainedModel
    from tercet.checkpoint.trained_model import Translator as Translator
    from tercet.checkpoint.trained_model import Verb as Verb
    from tercet.checkpoint.verification import Verification as Verification
    from tercet.checkpoint.verification import verify as verify
else:
    export_lazily(__name__)
