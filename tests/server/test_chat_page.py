"""The chat page in a real browser: Chromium, driven by Playwright, against a server with the default model."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from server.rig import listening

from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.server.app import create_app

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt install chromium)"),
]


@pytest.fixture(scope="module")
def url(default_model: Path) -> Iterator[str]:
    """A server with the default model."""
    llm = AsyncLLM(str(default_model), executor="native", max_model_len=1024, num_blocks=256)
    with listening(create_app(llm, model_names=("smollm2-135m",))) as address:
        yield address


@pytest.fixture
def page(url: str) -> Iterator[Page]:
    """The chat page, freshly loaded; errors on its console fail the test."""
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        opened = browser.new_page(viewport={"width": 1000, "height": 700})
        opened.on("pageerror", lambda error: errors.append(str(error)))
        opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        opened.goto(url + "/")
        yield opened
        browser.close()
    assert not errors


def say(page: Page, text: str) -> None:
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def test_a_question_is_answered_and_a_second_one_builds_on_it(page: Page) -> None:
    expect(page.locator("#model")).to_contain_text("smollm2-135m")
    page.click("#toggle")
    page.fill("#temperature", "0")
    say(page, "What is 2+2?")
    expect(page.locator("#log")).to_contain_text("4", timeout=30_000)
    expect(page.locator("#send")).to_have_text("Send", timeout=30_000)
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "And 3+3?")
    assert [message["role"] for message in sent.value.post_data_json["messages"]] == ["user", "assistant", "user"]
    expect(page.locator("#send")).to_have_text("Send", timeout=30_000)


def test_stop_ends_an_answer_and_frees_its_slot(page: Page, url: str) -> None:
    say(page, "Count from 1 to 500, one number per line.")
    expect(page.locator("#send")).to_have_text("Stop", timeout=30_000)
    page.click("#send")
    expect(page.locator("#send")).to_have_text("Send", timeout=30_000)
    page.wait_for_function(
        "async (url) => (await (await fetch(url + '/stats')).json()).active_requests === 0", arg=url, timeout=30_000
    )


def test_what_a_model_or_person_writes_is_text_not_markup(page: Page) -> None:
    say(page, "<img src=x onerror=alert(1)><b>bold</b>")
    expect(page.locator("#log")).to_contain_text("<b>bold</b>")
    assert page.locator("#log img").count() == 0
    expect(page.locator("#send")).to_have_text("Send", timeout=60_000)


def test_it_fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 640})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator("#prompt")).to_be_in_viewport()


def test_the_page_about_the_api_shows_and_tries_every_url_from_this_server_alone(page: Page, url: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url + "/docs")
    paths = page.request.get(url + "/openapi.json").json()["paths"]
    expect(page.locator("details.operation")).to_have_count(sum(map(len, paths.values())))
    chat = page.locator("details.operation", has=page.locator("code", has_text="/v1/chat/completions").first)
    chat.locator("summary").click()
    expect(chat.locator("td", has_text="messages *").first).to_be_visible()
    chat.get_by_role("button", name="Send").click()
    expect(chat.locator("pre")).to_contain_text('"finish_reason"', timeout=30_000)
    stream = page.locator("details.operation", has=page.locator("code", has_text="/generate"))
    stream.locator("summary").click()
    stream.get_by_role("button", name="Send").click()
    expect(stream.locator("pre")).to_contain_text('"type":"done"', timeout=30_000)
    assert asked and all(each.startswith(url) for each in asked)
