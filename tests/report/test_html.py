"""The page: what it says, that it escapes and needs nothing, and how Chromium shows it."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lightning_exposure.errors import ArgumentError
from lightning_exposure.report import MissingExtraError, References, RunRecord, write_report
from lightning_exposure.report.figures.paper import exposure_over_training
from lightning_exposure.report.pages import run as html
from lightning_exposure.report.pages._contents import attack_rows, canary_rows, facts, meaning, shade
from lightning_exposure.report.pages.run import render
from lightning_exposure.report.verdicts import HOLDS, LEAKS, LIKELY
from lightning_exposure.secrets import CanarySet, SecretFormat
from tests.report.builder import make_estimate, make_extraction, make_history, make_record


class _Outline(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    return render(make_record())


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of the words: drawing is what takes the time."""
    monkeypatch.setattr(html, "pictures", lambda record: [])


# --- the file ------------------------------------------------------------------------------------------------


def test_a_directory_or_a_file(tmp_path: Path) -> None:
    record = RunRecord(CanarySet.draw(SecretFormat.pin(), repetitions=[1]))
    assert write_report(record, tmp_path) == tmp_path / "report.html"
    assert write_report(record, tmp_path / "new" / "run") == tmp_path / "new" / "run" / "report.html"
    path = write_report(record, tmp_path / "mine.html")
    assert path == tmp_path / "mine.html"
    assert path.read_text(encoding="utf-8") == (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_needs_nothing_else(page: str) -> None:
    addresses = re.findall(r"""(?:src|href|srcset)=["']([^"']*)["']""", page)
    assert addresses
    assert all(address.startswith("data:") for address in addresses)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_without_jinja_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r'need jinja2.*pip install "lightning-exposure\[report\]"'):
        write_report(make_record(), tmp_path)


# --- what it says --------------------------------------------------------------------------------------------


def test_the_verdict_comes_first(page: str) -> None:
    outline = _Outline(page)
    headings = [tag for tag, _ in outline.tags if tag in {"h1", "h2", "h3"}]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    words = "2 of 3 secrets can be extracted: 1 with the first guess, 1 more within 1,000 guesses"
    assert f"<h1>{words}</h1>" in page
    assert f"<title>Exposure report: {words}</title>" in page


def test_for_those_who_do_not_see_it(page: str) -> None:
    outline = _Outline(page)
    assert outline.all("html") == [{"lang": "en"}]
    assert all(image["alt"] for image in outline.all("img"))
    assert "ssn-16x 29.9" in str(outline.all("img")[0]["alt"])
    assert outline.all("th")
    assert {header["scope"] for header in outline.all("th")} == {"col", "row", "rowgroup"}
    # What scrolls can be reached with the keyboard and has a name.
    regions = [item for item in outline.all("div") if item.get("class") == "scroll"]
    ids = {heading.get("id") for heading in outline.all("h2")}
    assert len(regions) == 5
    assert all(item["tabindex"] == "0" and item["aria-labelledby"] in ids for item in regions)


def test_figures_in_both_themes_and_widths(page: str) -> None:
    outline = _Outline(page)
    assert len(outline.all("source")) == 6
    images = {source["srcset"] for source in outline.all("source")} | {image["src"] for image in outline.all("img")}
    assert len(images) == 8
    for image in images:
        assert b"<svg" in base64.b64decode(str(image).partition("base64,")[2])


def test_everything_is_escaped() -> None:
    bad = SecretFormat('<script>alert("##")</script> & co', name="bad")
    canaries = CanarySet.draw(bad, repetitions=[1])
    attack = make_extraction([canaries[0].text], algorithm="<i>beam</i>", optimal=False, ended_by="<u>")
    record = RunRecord(
        canaries,
        settings={"<b>": "<img src=x onerror=alert(1)>"},
        history=make_history(canaries, 1),
        extractions={"bad": attack},
    )
    outline = _Outline(render(record))
    assert not {"script", "i", "u", "b"} & {tag for tag, _ in outline.tags}
    assert len(outline.all("img")) == 1
    assert outline.text.count(canaries[0].text) == 2
    assert "<img src=x onerror=alert(1)>" in outline.text


@pytest.mark.usefixtures("without_figures")
def test_the_rows_of_canaries() -> None:
    record = make_record(repetitions=[0, 1, 16])
    rows = canary_rows(record)
    assert [row.canary.id for row in rows] == ["ssn-16x", "ssn-1x", "ssn-0x"]
    assert [str(row.verdict) for row in rows] == [
        "1st guess, proven",
        "within 1,000 guesses (rank 2), proven",
        "not within 1,000,000 guesses, with 95% confidence",
    ]
    assert rows[0].share == 100.0
    top, before = record.history[-1].estimates["ssn-16x"], record.baseline["ssn-16x"]
    assert rows[0].gain == f"{top.low - before.high:+.1f} to {top.high - before.low:+.1f}"
    page = render(record)
    assert '<td class="judged leaks">1st guess, proven</td>' in page
    assert '<td class="judged likely">not within 1,000,000 guesses, with 95% confidence</td>' in page
    text = _Outline(render(record)).text
    assert "0 (control)" in text
    assert "29.90 of 29.90" in text


@pytest.mark.usefixtures("without_figures")
def test_a_canary_of_which_nothing_is_known() -> None:
    record = RunRecord(CanarySet.draw(SecretFormat.pin(), repetitions=[1]))
    (row,) = canary_rows(record)
    assert (row.estimate, row.gain, row.verdict.mood, row.share) == (None, "", "unknown", 0.0)
    text = _Outline(render(record)).text
    assert "unknown: neither measured nor attacked" in text
    assert "not measured" in text
    assert "No attack was made." in text
    assert "None were recorded." in text


@pytest.mark.usefixtures("without_figures")
def test_bounds_say_at_least() -> None:
    record = make_record(repetitions=[2], epochs=1)
    size = math.log2(10**9)
    # Some call a bound by its low end, some by the ceiling that the point jumps to.
    for bits in (11.0, size):
        bound = make_estimate(record.canaries[0], bits, is_bound=True, low=11.0, high=size, method="importance")
        record.history[0].estimates["ssn-2x"] = record.baseline["ssn-2x"] = bound
        text = _Outline(render(record)).text
        assert "≥ 11.00 of 29.90" in text
        assert "29.90 of 29.90" not in text
        assert "at least 11.0 of 29.9 bits" in meaning(record)[-1]
        assert "guess number at most 490,000, of 1,000,000,000" in meaning(record)[-1]


@pytest.mark.usefixtures("without_figures")
def test_what_is_sorted_and_drawn_as_a_bar_is_the_low_end() -> None:
    record = make_record(repetitions=[1, 4], epochs=1)
    canaries = record.canaries
    record.history[0].estimates["ssn-1x"] = make_estimate(canaries[0], 17.0, low=2.0, high=18.0)
    record.history[0].estimates["ssn-4x"] = make_estimate(canaries[1], 9.0, low=8.0, high=10.0)
    rows = canary_rows(record)
    assert [row.canary.id for row in rows] == ["ssn-4x", "ssn-1x"]
    assert rows[1].share == pytest.approx(100 * 2.0 / math.log2(10**9))


@pytest.mark.usefixtures("without_figures")
def test_what_the_numbers_rest_on_is_told() -> None:
    record = make_record(repetitions=[1, 4, 16], epochs=1)
    one, two, three = record.canaries
    estimates = record.history[0].estimates
    estimates[one.id] = make_estimate(one, 3.0, rests_on="4,096 walks & <a belief>")
    estimates[two.id] = make_estimate(two, 29.0, method="counted", low=28.0)
    estimates[three.id] = make_estimate(three, 20.0, method="new")
    page = render(record)
    text = _Outline(page).text
    assert "What these numbers rest on" in text
    assert "4,096 walks & <a belief> (ssn-1x)" in text
    assert "rounding leaves ties undecided" in text, "where the estimate does not say, the method does"
    assert "28.00 to 29.00 (certain)" in text
    assert 'title="4,096 walks &amp; &lt;a belief&gt;">importance</td>' in page


@pytest.mark.usefixtures("without_figures")
def test_exposures_of_an_earlier_model_are_called_so() -> None:
    record = make_record(epochs=2)
    record.steps = 750
    assert meaning(record)[-1].startswith("Exposures were last measured after step 500 of 750")


@pytest.mark.usefixtures("without_figures")
def test_long_lists_of_candidates_are_cut_but_canaries_are_not() -> None:
    record = make_record()
    render_text = record.canaries[0].format.render
    found = [render_text(number) for number in range(50)] + [record.canaries["ssn-4x"].text]
    record.extractions["ssn"] = make_extraction(found)
    (group,) = attack_rows(record)
    assert len(group.candidates) == 21
    assert group.candidates[-1][1] == "ssn-4x"
    assert group.hidden == 30
    assert "and 30 more, none of them a canary" in _Outline(render(record)).text


@pytest.mark.usefixtures("without_figures")
def test_an_attack_that_found_nothing() -> None:
    record = replace(make_record(), extractions={"ssn": make_extraction([], optimal=False, ended_by="seconds")})
    text = _Outline(render(record)).text
    assert "nothing was found" in text
    assert "no, ended by seconds" in text


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("measured", "found", "changes", "feeling", "words"),
    [
        ({}, ["ssn-4x"], {}, "leaks", "can recover ssn-4x, by guessing"),
        ({}, ["ssn-4x"], {"optimal": False}, "leaks", "the model is as good as a copy"),
        # Not among the first few: that is no reason to be green.
        ({}, ["elsewhere"], {}, "unknown", "shows how many guesses find ssn-4x"),
        ({}, [], {"optimal": False}, "unknown", "shows how many guesses find ssn-4x"),
        ({}, ["ssn-0x"], {}, "unknown", "Never in the training data, and found all the same: ssn-0x"),
        ({}, None, {}, "unknown", "shows how many guesses find ssn-4x"),
        ({"ssn-4x": 5.0}, None, {}, "likely", "does not come to any of the inserted secrets within 1,000,000 guesses "
         "(with 95% confidence)"),
        ({"ssn-4x": 5.0}, None, {}, "likely", "guess number 20,000,000 to 48,000,000 with 95% confidence, of"),
        ({"ssn-4x": 5.0}, ["elsewhere"], {}, "likely", "The model may still have learned something"),
        ({"ssn-4x": 5.0}, ["ssn-4x"], {}, "leaks", "can recover ssn-4x"),
        ({"ssn-4x": 9.9}, ["elsewhere"], {}, "unknown", "A larger budget, more samples"),
        ({"ssn-4x": 18.4}, ["elsewhere"], {}, "leaks", "can recover ssn-4x"),
        ({"ssn-0x": 5.0}, ["elsewhere"], {}, "unknown", "shows how many guesses find ssn-4x"),
    ],
)  # fmt: skip
def test_the_meaning_in_words(
    measured: dict[str, float], found: list[str] | None, changes: dict[str, Any], feeling: str, words: str
) -> None:
    record = make_record(repetitions=[0, 4])
    estimates = {key: make_estimate(record.canaries[key], bits) for key, bits in measured.items()}
    record.history = [replace(record.history[-1], estimates=estimates)]
    texts = {canary.id: canary.text for canary in record.canaries}
    record.extractions = (
        {} if found is None else {"ssn": make_extraction([texts.get(key, key) for key in found], **changes)}
    )
    assert shade(record) == feeling
    assert words in " ".join(meaning(record))
    assert f'class="verdict {feeling}"' in render(record)


@pytest.mark.parametrize("colour", [LEAKS, HOLDS, LIKELY])
def test_every_verdict_has_a_colour_of_its_own_in_both_themes(page: str, colour: str) -> None:
    assert f".verdict.{colour} {{ border-left-color: var(--{colour}); background: var(--{colour}-back); }}" in page
    assert f".judged.{colour} {{ color: var(--{colour});" in page
    for variable in (colour, f"{colour}-back"):
        light, dark = re.findall(rf"--{variable}: (#[0-9a-f]{{6}});", page)
        others = [other for other in (LEAKS, HOLDS, LIKELY) if other != colour]
        colours = [re.findall(rf"--{variable.replace(colour, other)}: (#[0-9a-f]{{6}});", page) for other in others]
        assert all(light != other[0] and dark != other[1] for other in colours)


@pytest.mark.usefixtures("without_figures")
def test_remarks_stand_below_the_headline() -> None:
    page = render(make_record(repetitions=[0, 4], epochs=1))
    assert "<h1>1 of 1 secret can be extracted with the first guess</h1>" in page
    assert '<p class="remarks">Control can be extracted: ssn-0x</p>' in page


def test_facts() -> None:
    found = dict(facts(make_record(repetitions=[0, 4])))
    assert found["inserted secrets"] == found["controls"] == "1"
    assert found["epochs"] == "10"
    assert found["time spent measuring"] == "8.0 s"


def test_references_without_a_finite_cost_have_no_picture() -> None:
    record = replace(make_record(epochs=1), references={"ssn": References([float("inf")])})
    assert len(_Outline(render(record)).all("img")) == 1


# --- in a browser --------------------------------------------------------------------------------------------

_MEASURE = """<!DOCTYPE html><meta charset="utf-8"><body><script>
const page = PAGE, found = [];
for (const width of [1280, 390]) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.srcdoc = page;
  document.body.append(frame);
}
window.addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument, root = inside.documentElement;
    const images = [...inside.images];
    found.push({
      inner: frame.contentWindow.innerWidth,
      scroll: root.scrollWidth,
      title: inside.title,
      background: frame.contentWindow.getComputedStyle(inside.body).backgroundColor,
      images: images.map(image => image.naturalWidth),
      sources: images.map(image => image.currentSrc.length),
      tables: [...inside.querySelectorAll(".scroll")].map(box => box.scrollWidth > box.clientWidth),
    });
  }
  document.body.textContent = "RESULT" + JSON.stringify(found) + "END";
});
</script>"""


def _in_chromium(page: str, directory: Path, *flags: str) -> tuple[list[dict[str, Any]], str]:
    """What the page measures at 1280 and 390 pixels, and what Chromium writes to its log."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for found in map(shutil.which, names) if found), None)
    if browser is None:
        pytest.skip(f"Chromium is not installed: none of {', '.join(names)} was found.")
    # The page goes into frames, as it is: a headless window may refuse to be as narrow as a phone.
    literal = json.dumps(page).replace("</", "<\\/")
    wrapper = directory / "wrapper.html"
    wrapper.write_text(_MEASURE.replace("PAGE", literal), encoding="utf-8")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--force-device-scale-factor=1",
        f"--user-data-dir={directory / 'profile'}", "--enable-logging=stderr", "--v=0", *flags, "--dump-dom",
        wrapper.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, check=True)
    result = re.search(r"RESULT(.*)END", done.stdout)
    assert result, done.stderr
    return json.loads(result[1]), done.stderr


def test_it_fits_a_desk_and_a_phone_in_chromium(tmp_path: Path) -> None:
    record = make_record(repetitions=[0, *range(1, 30)])
    record.settings["a_long_one"] = "unbroken" * 60
    found, log = _in_chromium(render(record), tmp_path)
    assert [item["inner"] for item in found] == [1280, 390]
    for item in found:
        assert item["scroll"] <= item["inner"]
        assert item["title"].startswith("Exposure report: 28 of 29 secrets")
        assert len(item["images"]) == 2
        assert all(width > 0 for width in item["images"])
        assert item["background"] == "rgb(244, 246, 248)"
    # A phone gets figures of its own, and its tables scroll inside their boxes.
    assert all(narrow < wide for wide, narrow in zip(found[0]["images"], found[1]["images"], strict=True))
    assert found[1]["tables"] == [False, True, True, True, False], "subject, guesses, canaries, attacks, settings"
    assert "CONSOLE" not in log


def test_it_is_dark_where_dark_is_preferred_in_chromium(tmp_path: Path, page: str) -> None:
    found, log = _in_chromium(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    dark = [len(source["srcset"] or "") for source in _Outline(page).all("source") if "dark" in str(source["media"])]
    for item, sources in zip(found, (dark[1::2], dark[0::2]), strict=True):
        assert item["background"] == "rgb(13, 16, 19)"
        assert item["sources"] == sources
        assert item["scroll"] <= item["inner"]
    assert "CONSOLE" not in log


# --- priors and margins --------------------------------------------------------------------------------------


def _against_a_prior(prior: str = "before_training") -> RunRecord:
    """The most exposed canary is of rank 1, 12.34 bits ahead of the next; each canary has a prior of its own."""
    record = make_record()
    final = record.history[-1]
    estimates = {
        key: replace(estimate, bits=17.2, low=17.2, high=17.2, prior_bits=20.0 + place)
        for place, (key, estimate) in enumerate(final.estimates.items())
    }
    best = estimates["ssn-16x"]
    estimates["ssn-16x"] = replace(best, method="exact", rank=1, bits=22.0, low=22.0, high=22.0, margin_bits=12.34)
    record.history[-1] = replace(final, estimates=estimates, prior=prior)
    return record


@pytest.mark.usefixtures("without_figures")
class TestPriorsAndMargins:
    def test_bits_of_the_secrets_own_ceiling_beside_the_rank(self) -> None:
        text = re.sub(r"\s+", " ", _Outline(render(_against_a_prior())).text)
        assert "22.00 of 22.00" in text
        assert "17.20 of 20.00" in text
        assert " of 29.90" not in text, "log2 |R| is no ceiling here"
        assert "1 (12.3 bits ahead)" in text
        assert "with 22.0 of 22.0 bits against the prior" in text
        assert "It costs 12.3 bits less than the next one." in text

    @pytest.mark.parametrize(
        ("prior", "words"),
        [
            ("before_training", "the model as it was before this training"),
            ("without_adapters", "the model without its adapters"),
            ("runs/base.ckpt", "runs/base.ckpt"),
        ],
    )
    def test_what_the_prior_is(self, prior: str, words: str) -> None:
        record = _against_a_prior(prior)
        assert ("prior", words) in facts(record)
        text = _Outline(render(record)).text
        assert "Ranks do not depend on the prior" in text

    def test_without_them_nothing_is_said(self) -> None:
        page = render(make_record())
        assert "prior" not in _Outline(page).text.lower()
        assert "ahead" not in _Outline(page).text.lower()

    def test_a_margin_that_is_a_bound(self) -> None:
        record = _against_a_prior()
        estimates = record.history[-1].estimates
        estimates["ssn-16x"] = replace(estimates["ssn-16x"], margin_is_bound=True)
        assert "1 (≥ 12.3 bits ahead)" in re.sub(r"\s+", " ", _Outline(render(record)).text)
        assert any("at least 12.3 bits less" in words for words in meaning(record))


def test_figures_against_a_prior_have_no_line_for_the_size_of_the_format() -> None:
    captions = [picture.caption for picture in html.pictures(_against_a_prior())]
    assert captions[0].startswith("Exposure of the canaries, against the prior of the model as it was before")
    drawn = exposure_over_training(_against_a_prior())
    assert not [line for axes in drawn.axes for line in axes.get_lines() if line.get_label() == "_size"]
    drawn = exposure_over_training(make_record())
    assert [line for axes in drawn.axes for line in axes.get_lines() if line.get_label() == "_size"]


def test_a_file_that_is_no_page_is_not_overwritten(tmp_path: Path) -> None:
    precious = tmp_path / "tokenizer.json"
    precious.write_text("{}", encoding="utf-8")
    record = RunRecord(CanarySet.draw(SecretFormat.ssn(), repetitions=[1]))
    with pytest.raises(ArgumentError, match=r"directory is '.*tokenizer\.json'; expected a directory"):
        write_report(record, precious)
    assert precious.read_text(encoding="utf-8") == "{}"
    assert write_report(record, tmp_path / "run.v2") == tmp_path / "run.v2" / "report.html"
    with pytest.raises(ArgumentError, match="directory is 1; expected the path of a directory"):
        write_report(record, 1)  # type: ignore[arg-type]
