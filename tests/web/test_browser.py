"""The app in Chromium: search, upload, compare and keyboard, without external requests or CSP reports."""

import io
import os
import shutil
import zipfile
from pathlib import Path

import pytest

from bcls.search.service import Service
from bcls.web import Site
from tests.search.factories import index, photos
from tests.web.factories import calibrated_site, listening, make_site

playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install playwright")
#: A browser of the system, else the one that `playwright install chromium` brings.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        # No background traffic of the browser's own.
        quiet = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        path = CHROMIUM or driver.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("needs Chromium: install it with the package manager, or run `playwright install chromium`")
        chromium = driver.chromium.launch(executable_path=path, args=quiet)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(folders):
    with listening(make_site(folders)) as address:
        yield address


@pytest.fixture
def page(browser, address):
    """A page that fails the test on external requests and console errors."""
    context = browser.new_context(viewport=DESKTOP, base_url=address)
    context.set_default_timeout(10_000)
    page = context.new_page()
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.expected = []
    yield page
    assert {url for url in requests if not url.startswith((address, "blob:" + address, "data:"))} == set()
    assert [text for text in errors if not any(part in text for part in page.expected)] == []
    context.close()


@pytest.fixture(scope="module")
def axe():
    """The script of axe-core, which checks accessibility."""
    package = pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install axe-playwright-python")
    return Path(package.__file__).with_name("axe.min.js").read_text(encoding="utf-8")


def shot(page, name):
    """Take a screenshot if BCLS_SCREENSHOTS is set."""
    if "BCLS_SCREENSHOTS" in os.environ:
        page.wait_for_load_state("networkidle")
        page.screenshot(path=f"{os.environ['BCLS_SCREENSHOTS']}/{name}.png")


def names(page):
    return page.locator("#results a.tile").evaluate_all("tiles => tiles.map(tile => tile.title)")


def type_query(page, text):
    with page.expect_response(lambda answer: "/results" in answer.url):
        page.locator("#q").press_sequentially(text, delay=20)
    page.wait_for_selector("#results .note")


def test_results_while_typing(page):
    page.goto("/")
    requests = []
    page.on("request", lambda request: requests.append(request.url) if "/results" in request.url else None)
    type_query(page, "red")
    assert 0 < len(names(page)) < 12
    assert names(page)[0] == "0/000-red-red.png"
    assert len(requests) < 3  # not one for each letter
    assert page.url.endswith("/?q=red")
    page.reload()
    assert names(page)[0] == "0/000-red-red.png"
    loaded = "tiles => tiles.every(tile => tile.complete && tile.naturalWidth > 0)"
    page.wait_for_function("() => [...document.querySelectorAll('#results img')].every(i => i.complete)")
    assert page.locator("#results img").evaluate_all(loaded)
    shot(page, "search-desktop")


def test_a_query_with_an_operator_is_typed_to_its_end_first(page):
    page.goto("/")
    type_query(page, "red")
    found = names(page)
    requests = []
    page.on("request", lambda request: requests.append(request.url) if "/results" in request.url else None)
    for typed in (" - ", "0.5 "):
        page.locator("#q").press_sequentially(typed)
        page.wait_for_timeout(600)
        assert requests == []
        assert names(page) == found
    type_query(page, "green")
    assert page.url.endswith("/?q=red+-+0.5+green")


def test_rows_are_justified(page):
    page.goto("/?q=red&fits=0")
    page.wait_for_function("() => [...document.querySelectorAll('#results img')].every(i => i.complete)")
    boxes = page.locator("#results li").evaluate_all(
        "items => items.map(i => { const r = i.getBoundingClientRect(); return [r.top, r.right, r.height]; })"
    )
    rows = {}
    for top, right, height in boxes:
        rows.setdefault(round(top), []).append((right, height))
    assert len(rows) > 1
    inner = page.locator("#results").evaluate("box => box.getBoundingClientRect().right")
    for row in list(rows.values())[:-1]:
        assert abs(max(right for right, _ in row) - inner) < 2
    assert len({round(height) for _, _, height in boxes}) == 1


def test_keys(page):
    page.goto("/?q=red&fits=0")
    page.locator("#q").evaluate("box => box.blur()")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.title"
    order = names(page)
    assert page.evaluate(focused) == order[0]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(focused) == order[1]
    top = "document.activeElement.getBoundingClientRect().top"
    before = page.evaluate(top)
    page.keyboard.press("ArrowDown")
    assert page.evaluate(top) > before
    page.keyboard.press("ArrowUp")
    assert abs(page.evaluate(top) - before) < 1
    chosen = page.evaluate(focused)
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] h2")
    assert page.locator("dialog h2").inner_text() == chosen
    shot(page, "photo-desktop")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    assert page.evaluate(focused) == chosen
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") != "q"


def test_slider(page):
    page.goto("/?q=red")
    fitting = names(page)
    with page.expect_response(lambda answer: "fits=0&" in answer.url + "&"):
        page.locator("[name=fits]").fill("0")
    page.wait_for_function("() => document.querySelectorAll('#results a.tile').length === 12")
    assert page.locator("output").inner_text() == "0%"
    assert page.url.endswith("/?q=red&fits=0")
    page.locator("[name=fits]").fill("0.5")
    page.wait_for_url("**/?q=red")
    assert names(page) == fitting
    page.get_by_text("Show photos that fit less").click()
    page.wait_for_url("**/?q=red&fits=0")
    assert page.locator("output").inner_text() == "0%"


def test_slider_follows_the_threshold_of_the_query(browser, folders):
    with listening(calibrated_site(folders)) as address:
        page = browser.new_page(base_url=address)
        page.goto("/?like=1")
        assert page.locator("output").inner_text() == "0%"
        page.get_by_role("button", name="Remove image").click()
        page.wait_for_function("() => document.querySelector('output').textContent === '30%'")
        page.locator("[name=fits]").fill("0.6")
        type_query(page, "red")
        assert page.locator("output").inner_text() == "60%"
        page.close()


def test_nothing_fits(page):
    page.goto("/?q=green&words=wall")
    assert page.locator("#results h2").inner_text() == "Nothing fits"
    assert names(page) == []
    shot(page, "nothing-desktop")
    page.get_by_text("Show the nearest photos").click()
    page.wait_for_selector("#results a.tile")
    assert names(page) == ["0/000-red-red.png"]


def test_filters_without_a_query(page):
    page.goto("/")
    assert len(names(page)) == 12
    page.locator("[name=under]").fill("1/")
    page.locator("[name=under]").press("Enter")
    page.wait_for_url("**/?under=1%2F")
    assert {name[0] for name in names(page)} == {"1"}


def test_pages_by_date_and_back(browser, folders, tmp_path):
    index(photos(tmp_path / "photos", 70), tmp_path / "index", folders / "first")
    with listening(Site(Service(tmp_path / "index"))) as address:
        page = browser.new_page(base_url=address)
        page.goto("/")
        first = names(page)
        page.get_by_text("Next").click()
        page.wait_for_selector("text=Page 2 of 2")
        assert page.url.endswith("/?page=2")
        assert len(names(page)) == 10
        page.go_back()
        page.wait_for_selector("text=Page 1 of 2")
        assert names(page) == first
        # Photos that are selected on another page stay selected when the address is opened again.
        page.locator("#results li > input").first.click()
        page.get_by_text("Next").click()
        page.wait_for_selector("text=Page 2 of 2")
        page.locator("#results li > input").first.click()
        chosen = [first[0], names(page)[0]]
        page.reload()
        page.wait_for_function("() => document.querySelector('#selection [role=status]').textContent === '2 selected'")
        page.wait_for_load_state("networkidle")
        with page.expect_download() as download:
            page.get_by_text("Download zip").click()
        with zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())) as archive:
            assert archive.namelist() == chosen
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
        page.evaluate("document.addEventListener('copy', () => { window.copied = getSelection().toString(); })")
        page.get_by_text("Copy paths").click()
        page.wait_for_selector("text=Copied")
        assert page.evaluate("window.copied").split() == [str(tmp_path / "photos" / name) for name in chosen]
        page.close()


def test_an_open_photo_has_an_address(page):
    page.goto("/?q=red")
    page.locator("#results a.tile").first.click()
    page.wait_for_selector("dialog[open] h2")
    number = page.locator("#results a.tile").first.get_attribute("href")
    assert page.url.endswith(number)
    page.keyboard.press("Escape")
    page.wait_for_url("**/?q=red")
    page.locator("#results a.tile").first.click()
    page.wait_for_selector("dialog[open] h2")
    page.go_back()
    page.wait_for_selector("dialog:not([open])", state="attached")
    assert page.url.endswith("/?q=red")
    page.go_forward()
    page.wait_for_selector("main > .photo")
    assert page.url.endswith(number)


def test_select_copy_and_download(page, folders):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/?q=red&fits=0")
    order = names(page)
    check = page.locator("#results li > input")
    assert page.locator("#selection").is_hidden()
    check.nth(0).click()
    check.nth(2).click(modifiers=["Shift"])
    check.nth(1).click()
    page.locator("#results a.tile").nth(4).focus()
    page.keyboard.press("x")
    chosen = [order[0], order[2], order[4]]
    assert page.locator("#selection [role=status]").inner_text() == "3 selected"
    shot(page, "selection-desktop")
    page.get_by_text("Copy paths").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("navigator.clipboard.readText()").split("\n") == [str(folders / "photos" / n) for n in chosen]
    # The selection is part of the address, and stays when other photos are shown.
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    assert page.locator("#selection [role=status]").inner_text() == "3 selected"
    page.locator("[name=fits]").fill("0.95")
    page.wait_for_url("**fits=0.95**")
    assert page.locator("#selection [role=status]").inner_text() == "3 selected"
    with page.expect_download() as download:
        page.get_by_text("Download zip").click()
    with zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())) as archive:
        assert archive.namelist() == chosen
    page.locator("[data-clear]").click()
    assert page.locator("#selection").is_hidden()
    assert "#" not in page.url


def test_copy_without_a_clipboard(page, folders):
    page.goto("/")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.evaluate("document.addEventListener('copy', () => { window.copied = getSelection().toString(); })")
    page.locator("#results li > input").first.click()
    page.get_by_text("Copy paths").click()
    page.wait_for_selector("text=Copied")
    assert page.evaluate("window.copied") == str(folders / "photos" / names(page)[0])


def test_duplicates(browser, folders, tmp_path):
    source = photos(tmp_path / "photos", 3)
    shutil.copy(source / "0/000-red-red.png", source / "copy.png")
    index(source, tmp_path / "index", folders / "first")
    with listening(Site(Service(tmp_path / "index"))) as address:
        page = browser.new_page(base_url=address)
        page.goto("/duplicates")
        page.get_by_text("Select all but the first").click()
        assert page.locator("#selection [role=status]").inner_text() == "1 selected"
        checked = page.locator(".group li > input").evaluate_all("all => all.map(one => one.checked)")
        assert checked == [False, True]
        page.close()


STATES = [
    "/",
    "/duplicates",
    "/?q=red&fits=0",
    "/?q=green&words=wall",
    "/?like=1",
    "/photo/1",
    "/compare?q=a+red+wall",
    "/runs",
]


@pytest.mark.parametrize(
    "views",
    [
        [(DESKTOP, "light"), (PHONE, "dark")],
        pytest.param([(DESKTOP, "dark"), (PHONE, "light")], marks=pytest.mark.slow),
    ],
    ids=["default", "others"],
)
@pytest.mark.parametrize("path", [*STATES, "/runs/vsepp%20%3Cb%3E", "/about/api", "/nowhere"])
def test_accessibility(browser, address, axe, path, views):
    for size, scheme in views:
        page = browser.new_page(base_url=address, viewport=size, color_scheme=scheme)
        page.goto(path)
        page.wait_for_load_state("networkidle")
        if path == "/?q=red&fits=0":
            page.locator("#results li > input").first.click()
            assert violations(page, axe) == []
            page.locator("#results a.tile").first.click()
            page.wait_for_selector("dialog[open] .like img")
        assert violations(page, axe) == []
        page.close()


def violations(page, axe):
    page.evaluate(axe)
    found = page.evaluate("axe.run()")["violations"]
    return [(one["id"], node["html"][:200], node["failureSummary"]) for one in found for node in one["nodes"]]


def test_without_scripts(browser, address):
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/")
    page.fill("#q", "red")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=red**")
    assert page.locator("#results a.tile").first.get_attribute("title") == "0/000-red-red.png"
    page.locator("#results a.tile").first.click()
    page.wait_for_url("**/photo/1")
    context.close()


def test_similar_photos_open_in_the_dialog(page):
    page.goto("/?q=red")
    page.locator("#results a.tile").first.click()
    page.wait_for_selector("dialog[open] .like a.tile")
    title = page.locator("dialog .like a.tile").first.get_attribute("title")
    page.locator("dialog .like a.tile").first.click()
    page.wait_for_function("title => document.querySelector('dialog h2').textContent === title", arg=title)
    page.locator("dialog .close button").click()
    page.wait_for_selector("dialog:not([open])", state="attached")


def test_captions_are_escaped(page):
    page.goto("/photo/1")
    page.wait_for_selector(".captions .truth")
    assert "<script>alert(1)</script>" in page.locator("ul.captions").inner_text()


def wait_for_results(page, first):
    page.wait_for_function("first => document.querySelector('#results a.tile')?.title === first", arg=first)


def test_choose_an_image(page, folders):
    page.goto("/?under=1/")
    page.locator("#image").set_input_files(folders / "photos/1/004-black-red.png")
    wait_for_results(page, "1/004-black-red.png")
    assert page.locator("#query-image img").evaluate("image => image.complete")
    page.locator("[name=fits]").fill("0")
    with page.expect_response(lambda answer: "under=0" in answer.url) as response:
        page.locator("[name=under]").fill("0/")
        page.locator("[name=under]").blur()
    assert response.value.request.method == "POST"
    page.wait_for_function("() => document.querySelectorAll('#results a.tile').length === 4")
    assert {name[0] for name in names(page)} == {"0"}
    shot(page, "image-desktop")
    # A text is combined with the image.
    with page.expect_response(lambda answer: "q=white" in answer.url) as response:
        page.locator("#q").fill("white")
    assert response.value.request.method == "POST"
    with page.expect_response(lambda answer: "/results" in answer.url) as response:
        page.locator("#query-image button").click()
    assert response.value.request.method == "GET"
    assert page.locator("#query-image").is_hidden()


HAND_OVER = """([kind, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "given.png", { type: "image/png" }));
  const name = kind === "paste" ? "clipboardData" : "dataTransfer";
  const make = kind === "paste" ? ClipboardEvent : DragEvent;
  const options = { bubbles: true, cancelable: true, [name]: data };
  if (kind === "drop") {
    document.body.dispatchEvent(new DragEvent("dragover", options));
    if (document.getElementById("drop").hidden) throw new Error("the drop hint is hidden");
  }
  document.body.dispatchEvent(new make(kind, options));
}"""


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_drop_or_paste_an_image(page, folders, kind):
    page.goto("/")
    content = list((folders / "photos/2/005-white-red.png").read_bytes())
    page.evaluate(HAND_OVER, [kind, content])
    wait_for_results(page, "2/005-white-red.png")
    assert page.locator("#drop").is_hidden()


def test_file_that_is_not_an_image(page, tmp_path):
    page.expected = ["415"]  # Chromium writes failed requests on the console
    (tmp_path / "no.png").write_bytes(b"not an image")
    page.goto("/")
    page.locator("#image").set_input_files(tmp_path / "no.png")
    page.wait_for_selector("#results .problem")
    assert "send a JPEG" in page.locator("#results").inner_text()


def test_a_file_that_is_too_large_is_not_sent(page, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(21 * 2**20))
    page.goto("/")
    page.locator("#image").set_input_files(tmp_path / "large.png")
    page.wait_for_selector("#results .problem")
    assert "larger than 20 MiB" in page.locator("#results").inner_text()


def test_missing_photo_file(browser, folders, tmp_path):
    path = folders / "photos/2/008-blue-green.png"
    shutil.move(path, tmp_path / "away.png")
    try:
        # A site of its own: others remember the thumbnail.
        with listening(make_site(folders, compare=False)) as address:
            page = browser.new_page(base_url=address)
            for start in ("/?q=blue&under=2/008&fits=0", "/?under=2/008", "/photo/11"):
                page.goto(start)
                page.wait_for_selector("main .missing")
                assert "photo is missing: 2/008-blue-green.png" in page.locator("main").inner_text()
            page.close()
    finally:
        shutil.move(tmp_path / "away.png", path)


def test_compare(page):
    page.goto("/compare")
    page.locator("#q").fill("a red wall")
    page.wait_for_selector(".column")
    assert page.locator(".column").count() == 2
    for column in page.locator(".column").all():
        truth = column.locator("li.truth a.tile")
        assert truth.count() == 1
        assert truth.evaluate("tile => getComputedStyle(tile).outlineStyle") == "solid"
        assert truth.evaluate("tile => getComputedStyle(tile).outlineColor") == "rgb(18, 128, 60)"
        assert column.locator("li.truth .label").inner_text() == "[1.00]"
    shot(page, "compare-desktop")
    page.locator("li.truth a.tile").first.click()
    page.wait_for_selector("dialog[open]")
    page.get_by_text("Compare the models on this photo").click()
    page.wait_for_selector(".column .captions .truth")
    shot(page, "compare-captions-desktop")


def test_runs(page):
    page.goto("/runs")
    assert page.locator("figure.chart img").count() == 2
    assert page.locator("figure.chart img").first.evaluate("image => image.naturalWidth") > 100
    shot(page, "runs-desktop")
    page.get_by_text("vsepp <b>", exact=True).first.click()
    page.wait_for_selector("tr.best")
    shot(page, "run-desktop")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(browser, address, scheme):
    context = browser.new_context(viewport=PHONE, base_url=address, color_scheme=scheme, has_touch=True, is_mobile=True)
    page = context.new_page()
    colours = set()
    for path in (
        "/",
        "/?q=red",
        "/?q=red&fits=1",
        "/photo/1",
        "/compare?q=a+red+wall",
        "/runs",
        "/runs/vsepp%20%3Cb%3E",
        "/about/api",
    ):
        page.goto(path)
        wide = "document.documentElement.scrollWidth"
        assert page.evaluate(wide) <= PHONE["width"], path
        colours.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        shot(page, f"phone-{scheme}-{path.strip('/').split('?')[0].split('/')[0] or 'search' + str('?' in path)}")
    assert colours == {"rgb(251, 250, 247)" if scheme == "light" else "rgb(20, 22, 26)"}
    page.goto("/?q=red")
    page.locator("#results a.tile").first.tap()
    page.wait_for_selector("dialog[open]")
    shot(page, f"phone-{scheme}-dialog")
    page.locator("dialog .close button").tap()
    page.wait_for_selector("dialog:not([open])", state="attached")
    context.close()


def test_login(browser, folders):
    token = "a secret of the house"  # noqa: S105
    with listening(make_site(folders, compare=False, token=token, any_host=True)) as address:
        context = browser.new_context(base_url=address)
        page = context.new_page()
        page.goto("/?q=red")
        assert page.url.endswith("/login?to=%2F%3Fq%3Dred")
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        page.wait_for_selector(".problem")
        page.fill("#token", token)
        page.keyboard.press("Enter")
        page.wait_for_selector("#q")
        assert page.url.endswith("/?q=red")  # the page that was opened first
        assert page.evaluate("document.cookie") == ""
        page.wait_for_function("() => [...document.querySelectorAll('#results img')].every(i => i.naturalWidth > 0)")
        page.get_by_text("Log out").click()
        page.wait_for_selector("#token")
        context.close()
