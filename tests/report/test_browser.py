"""The page in a real browser."""

import re
from itertools import pairwise

import pytest

from tests.report.folders import evaluation, make_run, row
from vitrail.report import write_report

BAD = "<script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run, and a comparison; with long and hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    excluded = {"client-with-a-very-long-name-" * 4: "did not reply in time, for the third time in a row", BAD: BAD}
    rows = [row(0, fd=30.0), row(1, fd=12.0, excluded=excluded), row(2, fd=14.0)]
    one = make_run(
        folder / "a-run-with-a-very-long-name-that-does-not-fit-into-one-line-of-a-page", rows, evaluated=evaluation()
    )
    two = make_run(folder / f"b{BAD.replace('/', '')}", rows, settings={"seed": 1, "partition": "dirichlet:0.3"})
    three = make_run(folder / "c", [row(n, **{f"metric{i}": 1.0 for i in range(6)}) for n in range(3)])
    write_report([one], folder / "one.html")
    write_report([one, two, three], folder / "many.html")
    return {"one": folder / "one.html", "many": folder / "many.html"}


@pytest.fixture
def visit(browser, pages):
    """Open a page in a new context; at the end, check that there were no errors and no network requests."""
    contexts, errors, requests = [], [], []

    def go(name="one", media="screen", **context):
        contexts.append(browser.new_context(**{"viewport": {"width": 1000, "height": 800}} | context))
        page = contexts[-1].new_page()
        page.on("console", lambda m: errors.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda e: errors.append(str(e)))
        page.on("request", lambda r: requests.append(r.url))
        page.emulate_media(media=media)
        page.goto(pages[name].as_uri())
        return page

    yield go
    for context in contexts:
        context.close()
    assert errors == []
    assert {url for url in requests if not url.startswith("data:")} <= {path.as_uri() for path in pages.values()}


def contrast(page, selector, of="color"):
    """WCAG contrast between an element and the page's background."""
    foreground, background = page.evaluate(
        """([selector, of]) => [getComputedStyle(document.querySelector(selector))[of],
        getComputedStyle(document.body).backgroundColor]""",
        [selector, of],
    )

    def luminance(color):
        channels = [int(c) / 255 for c in re.findall(r"\d+", color)[:3]]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted([luminance(foreground), luminance(background)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


def shown(page):
    """Captions of the visible grids."""
    frames = page.locator(".frame:visible")
    return [frames.nth(i).locator("figcaption").text_content() for i in range(frames.count())]


def test_moving_the_slider_changes_the_grid_and_the_text_of_the_round(visit):
    page = visit()
    assert shown(page) == ["Round 3, stored model"]
    before = page.locator(".frame:visible img").get_attribute("src")
    page.locator("input[type=range]").fill("0")
    assert shown(page) == ["Round 1"]
    assert page.locator("output").text_content() == "Round 1"
    assert page.locator(".frame:visible img").get_attribute("src") != before


def test_dragging_the_slider_changes_the_grid_without_moving_the_slider(visit):
    page = visit()
    slider = page.locator("input[type=range]")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 2, box["y"] + box["height"] / 2)
    assert shown(page) == ["Round 1"]
    assert slider.bounding_box() == box
    page.mouse.up()


def test_the_slider_responds_to_keys_and_announces_the_round(visit):
    page = visit()
    slider = page.get_by_label("Round", exact=True)
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert shown(page) == ["Round 2"]
    page.keyboard.press("Home")
    assert shown(page) == ["Round 1"]
    assert slider.get_attribute("aria-valuetext") == "Round 1"


def test_play_shows_the_rounds_and_stops_at_the_end(visit):
    page = visit()
    page.clock.install()
    play = page.locator(".play")
    play.click()
    assert shown(page) == ["Round 1"]
    assert play.text_content() == "Pause"
    page.clock.run_for(5000)
    assert shown(page) == ["Round 3, stored model"]
    assert play.text_content() == "Play"


def test_sliders_of_a_comparison_are_independent(visit):
    page = visit("many")
    page.locator("details.run > summary").nth(0).click()
    page.locator("details.run > summary").nth(1).click()
    page.locator("#run1 input[type=range]").fill("0")
    assert shown(page) == ["Round 3, stored model", "Round 1"]


@pytest.mark.parametrize("name", ["one", "many"])
def test_a_phone_needs_no_horizontal_scrolling(visit, name):
    page = visit(name, viewport={"width": 360, "height": 700})
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_light_and_dark_mode_differ_and_are_both_legible(visit):
    background = "getComputedStyle(document.body).backgroundColor"
    text = "getComputedStyle(document.querySelector('.chart svg text')).fill"
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    assert light.evaluate(background) != dark.evaluate(background)
    assert light.evaluate(text) != dark.evaluate(text)
    for page in (light, dark):
        assert contrast(page, "body") >= 7
        for selector in (".tiles .detail", ".remark", ".numbers > summary", ".overview dt"):
            assert contrast(page, selector) >= 4.5
        assert contrast(page, ".chart svg text", "fill") >= 4.5
        assert contrast(page, ".legend .c1") >= 3


@pytest.mark.parametrize("name", ["one", "many"])
def test_print_shows_first_middle_and_last_grid_and_all_tables(visit, name):
    page = visit(name, "print", viewport={"width": 680, "height": 900}, color_scheme="dark")
    assert page.locator(".control:visible, .copy:visible").count() == 0
    assert shown(page) == ["Round 1", "Round 2", "Round 3, stored model"] * (1 if name == "one" else 3)
    assert page.locator("table:visible").count() == page.locator("table").count() > 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 680
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert contrast(page, "body") >= 7
    assert contrast(page, ".chart svg text", "fill") >= 4.5


def test_without_scripts_the_last_grid_is_shown_without_controls(visit):
    page = visit(java_script_enabled=False)
    assert shown(page) == ["Round 3, stored model"]
    assert page.locator("button:visible, input:visible").count() == 0


@pytest.mark.parametrize("name", ["one", "many"])
def test_hostile_names_are_shown_as_text(visit, name):
    page = visit(name)
    assert page.evaluate("window.hacked") is None
    assert page.locator("th", has_text=BAD).count() == {"one": 1, "many": 2}[name]  # once per run that excluded it
    assert page.locator("script").count() == 1


@pytest.mark.parametrize(("policy", "hacked"), [("Content-Security-Policy", None), ("", 1)])
def test_the_content_policy_blocks_foreign_scripts(browser, pages, tmp_path, policy, hacked):
    html = pages["one"].read_text().replace("<main>", f"<main>{BAD}", 1).replace("Content-Security-Policy", policy)
    (tmp_path / "changed.html").write_text(html)
    page = browser.new_page()
    page.goto((tmp_path / "changed.html").as_uri())
    assert page.evaluate("window.hacked") == hacked
    page.close()


def test_the_copy_button_copies_all_settings(visit):
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy settings.toml").click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("pre").first.text_content()


@pytest.mark.parametrize("name", ["one", "many"])
def test_headings_images_tables_and_inputs_are_accessible(visit, name):
    page = visit(name)
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4,h5')].map(h => Number(h.tagName[1]))")
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for missing in ("img:not([alt])", "img[alt='']", "th:not([scope])", "table:not(:has(caption))", "html:not([lang])"):
        assert page.locator(missing).count() == 0, missing
    assert page.evaluate("[...document.querySelectorAll('input')].every(i => i.labels.length === 1)")
    assert page.locator("[role=img][aria-label*='at round']").count() > 0
