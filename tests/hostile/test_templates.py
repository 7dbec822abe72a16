"""Chat templates that never end, grow or escape the sandbox are rejected quickly, and the next one is rendered."""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tercet.config import UserError
from tercet.tokens import BPE, Tokenizer, chat_template
from tercet.tokens.chat_template import ChatTemplate

TOKENIZER = Tokenizer.train(BPE(vocab_size=300, pad=True, bos=True), ["hello there " * 9])
MESSAGES = [{"role": "user", "content": "hi"}]
ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a long loop": "{% for i in range(10**9) %}x{% endfor %}",
    "a long text": "{{ 'a' * 10**10 }}",
    "a wide text": "{{ 'a' | center(10**9) }}",
    "indent": "{{ messages | tojson(indent=10**9) }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "doubling": "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "lists": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "powers": "{{ (10**9) ** (10**9) }}",
    "recursion": "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "two calls each": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "content": "{% for m in messages %}{{ m.content * 40000000 }}{% endfor %}",
    "batches": "{{ range(99999) | map('string') | join('x' * 9999) }}",
    "lorem": "{{ lipsum(n=1000000) }}",
    "sorting": "{% for i in range(99999) %}{{ range(99999) | list | sort | length }}{% endfor %}",
}
OUT = {
    "attributes": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch RAN') }}",
    "subclasses": "{{ ().__class__.__base__.__subclasses__() }}",
    "attr": "{{ () | attr('__class__') | attr('__base__') }}",
    "format map": "{{ '{0.__class__.__init__}'.format_map({'0': 1}) }}",
    "include": "{% include '/etc/hostname' %}",
    "import": "{% import 'os' as os %}{{ os.system('touch RAN') }}",
    "self": "{{ self._TemplateReference__context.environment.compile('x') }}",
    "raise": "{{ raise_exception('no') }}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_template_is_rejected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "TEMPLATE_SECONDS", 0.05)
    with pytest.raises(UserError) as error:
        ChatTemplate(ENDLESS[name], TOKENIZER).render(MESSAGES)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("name", OUT)
def test_a_template_stays_in_its_sandbox(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(UserError):
        assert ChatTemplate(OUT[name], TOKENIZER).render(MESSAGES) == ""
    assert not (tmp_path / "RAN").exists()


@pytest.mark.slow
def test_after_a_rejected_conversation_the_next_is_rendered() -> None:
    template = ChatTemplate("{{ messages[0].content * (messages | length) ** 9 }}", TOKENIZER)
    assert template.render(MESSAGES) == "hi"
    with pytest.raises(UserError, match=r"takes more than 2 seconds or 512 MiB|longer than"):
        template.render(MESSAGES * 99)
    assert template.render(MESSAGES) == "hi"


@pytest.mark.slow
def test_a_program_can_be_terminated_while_a_template_runs(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(
        "from tercet.tokens.chat_template import ChatTemplate\n"
        "from tercet.tokens import BPE, Tokenizer\n"
        "template = ChatTemplate("
        + json.dumps(ENDLESS["loops"])
        + ", Tokenizer.train(BPE(vocab_size=300, bos=True), ['hello']))\n"
        "print('begun', flush=True)\n"
        "template.render([])\n"
    )
    with subprocess.Popen([sys.executable, tmp_path / "run.py"], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"begun\n"
        time.sleep(0.2)
        program.send_signal(signal.SIGTERM)
        assert program.wait(2) == -signal.SIGTERM
