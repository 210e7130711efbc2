"""The report in a real browser: it draws, sorts, follows its sliders, prints, fits a phone, and asks no network."""

import json
import os
import shutil

import numpy as np
import pytest

from machine import MACHINE
from paraaegis.planning.cost import Setting, estimate
from paraaegis.report.collect import collect
from paraaegis.report.page import write_page
from toy import compared

CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
NEEDED = os.environ.get("PARAAEGIS_BROWSER") == "required"
pytestmark = [
    pytest.mark.skipif(
        not (CHROMIUM and DRIVER) and not NEEDED, reason="chromium and chromium-driver are not installed"
    ),
    pytest.mark.timeout(300),
]
UPDATES = np.random.default_rng(0).uniform(0, 0.3, (3, 3, 500)).astype(np.float32)
NOISED = ["privacy.epsilon=8.0", "privacy.clip=1.0"]
METHODS = {"fedavg": [], "dp-fedavg": NOISED, "paraaegis-static": ["protect.ratio=0.1", *NOISED],
           "paraaegis-feedback": ["protect.ratio=0.1"]}  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    out = compared(tmp_path_factory.mktemp("comparison"), UPDATES, METHODS)
    write_page(*collect([out]), out / "report.html", "A test's runs", MACHINE)
    return (out / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, address):
    """The page, just loaded, in a desktop-sized window."""
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    show(browser, 1280, 900)
    browser.get(address)
    return browser


def show(browser, width, height):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def slide(browser, name, value):
    script = """
      const input = document.querySelector(`#explorer [name="${arguments[0]}"]`);
      input.value = arguments[1];
      input.dispatchEvent(new Event("input", { bubbles: true }));
    """
    browser.execute_script(script, name, value)


def shown(browser, name):
    return browser.execute_script("return document.querySelector(`[data-out='${arguments[0]}']`).textContent", name)


def test_it_draws_without_errors_and_without_a_network(opened):
    drawn = opened.execute_script("return [FIGURES.length, document.querySelectorAll('.plot .main-svg').length]")
    assert drawn[0] >= 6
    assert drawn[1] >= drawn[0]
    assert [entry for entry in opened.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    asked = [json.loads(entry["message"])["message"] for entry in opened.get_log("performance")]
    addresses = [one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"]
    assert addresses
    assert [url for url in addresses if not url.startswith(("file:", "data:", "blob:"))] == []


def test_tables_sort_by_a_click_and_back_by_another(opened):
    def column():
        rows = "document.querySelectorAll('table.sortable')[0].tBodies[0].rows"
        texts = opened.execute_script(f"return [...{rows}].map((row) => row.cells[4].textContent)")
        return [float(text) for text in texts]

    head = opened.find_elements("css selector", "table.sortable th button")[4]
    head.click()
    assert column() == sorted(column())
    assert len(set(column())) > 1
    head.click()
    assert column() == sorted(column(), reverse=True)


def test_empty_cells_come_last_and_do_not_make_numbers_text(opened):
    opened.execute_script(
        "const rows = document.querySelectorAll('table.sortable')[0].tBodies[0].rows;"
        "['9.5', '', '82.1', '10.2'].forEach((text, i) => { rows[i].cells[1].textContent = text; })"
    )
    opened.find_elements("css selector", "table.sortable th button")[1].click()
    rows = "document.querySelectorAll('table.sortable')[0].tBodies[0].rows"
    texts = opened.execute_script(f"return [...{rows}].map((row) => row.cells[1].textContent)")
    assert texts == ["9.5", "10.2", "82.1", ""]


def test_figures_stay_when_the_colours_and_then_the_width_change(opened):
    for scheme in ("dark", "light"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        for width in (700, 1100):
            show(opened, width, 900)
            heights = opened.execute_async_script(
                "const done = arguments[0]; setTimeout(() => done([...document.querySelectorAll('.plot')]"
                ".map((one) => one.offsetHeight)), 600)"
            )
            assert min(heights) > 100


def test_sliders_move_what_is_modelled_and_the_nearest_measured_runs(opened):
    before = {name: shown(opened, name) for name in ("up", "down", "round", "run", "memory")}
    slide(opened, "ratio", -2.5)
    after = {name: shown(opened, name) for name in before}
    assert before["up"] != after["up"]
    slide(opened, "length", 7.5)
    assert all(shown(opened, name) != after[name] for name in after)
    here = opened.find_element("css selector", "[name=here]")
    assert here.is_selected()  # as in the runs of this page
    here.click()
    slide(opened, "bandwidth", 0)
    slow = shown(opened, "run")
    slide(opened, "bandwidth", 3)
    assert shown(opened, "run") != slow
    slide(opened, "method", "dp-fedavg")
    assert shown(opened, "sigma").startswith("σ = ")
    loud = shown(opened, "sigma")
    slide(opened, "budget", 10)
    assert shown(opened, "sigma") != loud
    nearest = opened.find_elements("css selector", "tbody.measured tr")
    assert nearest[0].text.startswith("dp-fedavg")
    slide(opened, "method", "paraaegis-feedback")
    assert shown(opened, "sigma") == "none"


@pytest.mark.parametrize("method", [*MACHINE.methods, "varying-dp", "paraaegis-dynamic"])
@pytest.mark.parametrize("bandwidth", [None, 50.0])
def test_the_page_counts_as_the_planner_does(opened, method, bandwidth):
    setting = {"method": method, "length": 123_457, "clients": 7, "rounds": 9, "ratio": 0.07, "train": 0.3}
    setting |= {"decay": 0.9 if method == "paraaegis-dynamic" else 1.0, "bandwidth": bandwidth}
    found = opened.execute_script("return estimate(EXPLORER, arguments[0])", setting)
    expected = estimate(MACHINE, Setting(**setting))
    for name in ("seconds", "bytes_up", "bytes_down", "memory_client", "memory_server"):
        assert found[name] == pytest.approx(getattr(expected, name), rel=1e-9)
    assert found["phases"] == pytest.approx(expected.phases)


def test_every_figure_gives_its_data(opened):
    links = opened.find_elements("css selector", "a.download")
    assert len(links) == opened.execute_script("return FIGURES.length")
    assert all(link.get_attribute("href").startswith("data:text/csv") for link in links)
    assert "fedavg" in links[0].get_attribute("href")


def test_the_print_has_everything(opened):
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    parts = "[...document.querySelectorAll('section, figure, table, pre')]"
    assert opened.execute_script(f"return {parts}.filter((one) => one.offsetHeight === 0).length") == 0
    assert opened.execute_script("return [...document.querySelectorAll('details')].every((one) => one.open)")
    show(opened, 720, 1000)
    cut = "[...document.querySelectorAll('.wide')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert opened.execute_script(f"return {cut}") == 0
    assert len(opened.execute_cdp_cmd("Page.printToPDF", {})["data"]) > 50_000


def test_a_dark_page_is_printed_light(opened):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    assert opened.execute_script("return getComputedStyle(document.body).color") == "rgb(26, 26, 26)"


def test_a_phone_need_not_scroll_sideways(opened):
    show(opened, 390, 844)
    opened.refresh()
    widths = opened.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [390, 390]


def test_it_follows_the_readers_choice_of_dark_or_light(opened):
    def paper(scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return opened.execute_script("return getComputedStyle(document.body).backgroundColor")

    assert paper("light") == "rgb(255, 255, 255)"
    assert paper("dark") == "rgb(21, 23, 26)"
