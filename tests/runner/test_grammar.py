"""Grammars in the runner: rows with and without one, drafts, eviction, release."""

import numpy as np
import pytest
from runner.toy import VOCAB, Driver

from mini_vllm.grammar import GrammarCompiler
from mini_vllm.runner import ModelRunner
from mini_vllm.sampling import make_sampler
from mini_vllm.types import StructuredOutputsParams as Structured


class Letters:
    """Token i is the character behind i signs of ASCII; 0 is EOS."""

    vocab_size = VOCAB
    special_ids = frozenset({0})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([31 + token_id])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [max(byte - 31, 0) for byte in text.encode()]


def text_of(tokens) -> str:
    return b"".join(Letters().token_bytes(token) for token in tokens).decode()


def make_driver(backend: str = "numpy") -> Driver:
    driver = Driver()
    driver.runner = ModelRunner(
        driver.program,
        make_sampler(limit=VOCAB, backend=backend),
        block_size=4,
        max_model_len=128,
        max_tokens=512,
        max_rows=16,
        grammars=GrammarCompiler(Letters(), eos_token_ids=[0]),
    )
    return driver


ANY = {"temperature": 1.0, "structured_outputs": Structured(regex="([a-c][0-9]){6}!")}


@pytest.mark.parametrize("backend", ["numpy", "native"])
def test_rows_with_and_without_a_grammar_share_a_step(backend: str) -> None:
    driver, alone = make_driver(backend), make_driver(backend)
    alone.add(1, [5, 6], key=7, temperature=1.0)
    free = alone.generate(1, 13)
    alone.add(2, [5, 6], key=7, **ANY)
    held = alone.generate(2, 13)
    driver.add(1, [5, 6], key=7, temperature=1.0)
    driver.add(2, [5, 6], key=7, **ANY)
    for _ in range(13):
        outputs = driver.step(driver.chunk(1), driver.chunk(2))
    assert driver.sequences[1]["tokens"][2:] == free
    assert driver.sequences[2]["tokens"][2:] == held
    assert outputs[2].complete and not outputs[1].complete and outputs[2].error is None
    text = text_of(held)
    assert len(text) == 13 and text.endswith("!") and set(text[0:12:2]) <= set("abc") and text[1:12:2].isdigit()


def test_eviction_leaves_the_cursor_and_release_drops_it() -> None:
    plain, driver = make_driver(), make_driver()
    plain.add(1, [5, 6], **ANY)
    expected = plain.generate(1, 13)
    driver.add(1, [5, 6], **ANY)
    driver.generate(1, 5)
    driver.evict(1)
    assert driver.generate(1, 13) == expected
    assert driver.runner.rows.num_constrained == 1
    driver.release(1)
    driver.step()
    assert driver.runner.rows.num_constrained == 0


@pytest.mark.parametrize("wrong", [None, 0, 2])
def test_drafts_change_nothing(wrong: int | None) -> None:
    """Guesses that fit, that the model would not choose, and that the grammar does not allow."""
    plain, driver = make_driver(), make_driver()
    plain.add(1, [5, 6], **ANY)
    expected = plain.generate(1, 13)
    driver.add(1, [5, 6], **ANY)
    while len(done := driver.sequences[1]["tokens"][2:]) < 13:
        drafts = expected[len(done) : len(done) + 3]
        if wrong is not None and len(drafts) > wrong:
            drafts[wrong] = Letters().encode("~")[0]
        outputs = driver.step(driver.chunk(1, drafts=drafts))
        assert outputs[1].error is None
    assert done == expected and outputs[1].complete


def test_a_grammar_that_cannot_go_on_ends_its_sequence_and_no_other() -> None:
    driver = make_driver()
    driver.add(1, [5, 6], **{**ANY, "allowed_token_ids": Letters().encode("a")})  # and no digits
    driver.add(2, [5, 6], **ANY)
    driver.step(driver.chunk(1), driver.chunk(2))
    outputs = driver.step(driver.chunk(1), driver.chunk(2))
    assert outputs[1].error and not outputs[1].complete
    assert outputs[2].error is None and np.isfinite(outputs[2].token_ids[0])
