"""The page of steps: its data by a law, and what is seen and clicked in Chromium."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lms.ir.graph import GraphView, Tensor
from lms.ir.liveness import peak
from lms.ir.plan import Swap, SwapIn, SwapPlan, planned_graph
from lms.ir.recompute import Recomputed
from lms.machine.hardware import Costs, Hardware
from lms.planning.candidates import movable
from lms.planning.eviction import least_room
from lms.report.page import Shown, as_page, in_cell
from lms.report.step import Held, StepTimeline
from lms.simulation.executor import simulate
from lms.simulation.memory import simulate_memory
from lms.units import MIB
from tests.graphs import make_op, scheduled
from tests.planning.counting import plan_in_bytes
from tests.report.test_step import REPORT
from tests.strategies import examples, graphs

CARD = Hardware(
    name="a card",
    memory=1 << 30,
    flops=1,
    memory_bandwidth=1,
    h2d=MIB * 1e3,
    d2h=MIB * 500,
)
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


def op(name: str, mib: int, *reads: str, **rest: Any) -> Any:
    """Return an op of one output; its inputs are the outputs of ops."""
    return replace(
        make_op("a", mib * MIB, **rest),
        name=name,
        inputs=tuple(f"{read}:0" for read in reads),
        outputs=(Tensor(name=f"{name}:0", size=mib * MIB, shape=(mib, 2)),),
        repeatable=True,
    )


# Seven ops of 10 ms. The first one's 40 MiB leave after the second (80 ms), and come
# back for the last (40 ms); the third one's 20 MiB are dropped, and made again.
FIRST, SECOND, THIRD = "unet/down/Conv", "unet/up/Conv", "unet/up/Relu"
FOURTH, FIFTH, SIXTH = f"unet/{EVIL}/Add", "loss/Sum", "gradient_tape/unet/up/Grad"
LAST = "adam/Sub"
STEP = GraphView(
    ops=(
        op(FIRST, 40),
        op(SECOND, 10, FIRST),
        op(THIRD, 20, SECOND),
        op(FOURTH, 30, THIRD),
        op(FIFTH, 10, FOURTH),
        op(SIXTH, 10, FIFTH, THIRD),
        op(LAST, 10, SIXTH, FIRST),
    )
)
AGAIN = f"lms/again/{THIRD}"
ORDER = (FIRST, SECOND, THIRD, FOURTH, FIFTH, AGAIN, SIXTH, LAST)
PLAN = SwapPlan(
    planner="by hand",
    order=ORDER,
    chain=ORDER,
    recomputed=(Recomputed(op=THIRD, readers=(SIXTH,)),),
    swaps=(
        Swap(
            tensor=f"{FIRST}:0",
            size=40 * MIB,
            release=THIRD,
            swap_ins=(SwapIn(trigger=FOURTH, readers=(LAST,)),),
        ),
    ),
)


def shown(
    graph: GraphView, plan: SwapPlan, *, timed: bool = True, why: str = ""
) -> Shown:
    """Return a step of 10 ms an op that begins with 5 MiB of a batch."""
    ran = planned_graph(graph, plan)
    memory = simulate_memory(ran, plan)
    costs = Costs(seconds={each.name: 0.01 for each in ran.ops}, source="measured")
    return Shown(
        why=why,
        report=replace(REPORT, plan=plan, persistent_bytes=5 * MIB),
        timeline=StepTimeline(
            kind="train",
            signature="2x4",
            graph=ran,
            unplanned=memory,
            planned=memory,
            persistent_bytes=5 * MIB,
            lanes=simulate(ran, plan, costs, CARD) if timed else None,
            plan=plan,
            held=(Held("x", 5 * MIB, is_input=True),),
            costs=costs if timed else None,
            hardware=CARD if timed else None,
        ),
    )


def data_of(page: str) -> list[dict[str, Any]]:
    """Return the data that a page draws."""
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@given(st.data())
@examples(60)
def test_what_is_drawn_at_each_op_adds_up_to_the_planned_bytes(data: Any) -> None:
    graph = scheduled(data.draw(graphs()))
    able = movable(graph, min_bytes=1)
    least, _ = least_room(graph, movable=able, min_bytes=1)
    budget = data.draw(st.integers(least, max(least, peak(graph))))
    plan = plan_in_bytes(graph, budget, movable=able, min_bytes=1)
    step = shown(graph, plan)
    (drawn,) = data_of(as_page([step]))
    device = step.timeline.planned.device
    for at, used in enumerate(device):
        live = (drawn["tensors"][t][2] for t, a, b, _ in drawn["lives"] if a <= at < b)
        scratch = [value for place, value in drawn["scratch"] if place <= at]
        assert sum(live) + (scratch or [0])[-1] == used


def test_a_page_loads_nothing_and_names_end_no_script() -> None:
    page = as_page([shown(STEP, PLAN)])
    assert page.count("</script>") == 2
    assert not re.search(r"https?://|<link|<script src|@import|url\(", page)
    assert [EVIL in name for name, *_ in data_of(page)[0]["ops"]].count(True) == 1


def test_layers_are_found_below_the_numbers_that_tensorflow_appends() -> None:
    names = ("m_1/conv_1/Relu", "m_1/conv_1_2/batch/mul", "gradient_tape/m_1/conv_1/x")
    graph = GraphView(ops=(*(op(name, 1) for name in names), op("adam/Sub", 1)))
    plan = SwapPlan(planner="none", order=graph.order)
    (drawn,) = data_of(as_page([shown(graph, plan)], {"conv", "conv_1"}))
    layers = [drawn["layers"][layer] for _, layer, _ in drawn["ops"]]
    assert layers == ["conv", "conv_1", "conv", "adam"]
    exact = GraphView(ops=(op("m/conv/Relu", 1), op("m/conv_1/Relu", 1)))
    plan = SwapPlan(planner="none", order=exact.order)
    (drawn,) = data_of(as_page([shown(exact, plan)], {"conv", "conv_1"}))
    assert drawn["layers"] == ["conv", "conv_1"]


def test_ten_thousand_ops_make_less_than_five_megabytes() -> None:
    names = [
        f"functional_1/block_{i // 100}/layer_{i // 10}/Conv" for i in range(10_000)
    ]
    names = [f"{name}_{i}" for i, name in enumerate(names)]
    pairs = zip(names, ["", *names], strict=False)
    graph = GraphView(ops=tuple(op(n, 1, *([b] if b else [])) for n, b in pairs))
    page = as_page([shown(graph, SwapPlan(planner="none", order=graph.order))])
    assert len(page.encode()) < 5_000_000


def test_a_notebook_gets_a_text_and_the_page_in_a_frame() -> None:
    cell = in_cell("a < b", as_page([shown(STEP, PLAN)]))
    assert cell.startswith("<pre>a &lt; b</pre><iframe")
    assert "<script" not in cell  # all of the page is escaped
    assert in_cell("a < b", "") == "<pre>a &lt; b</pre>"


# --------------------------------------------------------------------- in the browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    service = pytest.importorskip("selenium.webdriver.chrome.service")
    driver = shutil.which("chromedriver")
    if driver is None:
        pytest.skip("needs chromium and its driver: apt-get install chromium-driver")
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=service.Service(driver))
    yield found
    found.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """Return a function that opens a page, 1200 pixels wide unless said otherwise."""

    def opened(steps: list[Shown], width: int = 1200) -> Any:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        (tmp_path / "page.html").write_text(as_page(steps))
        browser.get((tmp_path / "page.html").as_uri())
        return browser

    yield opened
    assert browser.get_log("browser") == []  # no error, nothing that was not found


def click(browser: Any, ms: float, above: float) -> str:
    """Click the chart at a time, a part of the memory's height above its floor."""
    from selenium.webdriver import ActionChains

    canvas = browser.find_element("id", "chart")
    wide, tall = canvas.size["width"], canvas.size["height"]
    end = float(browser.execute_script("return S.end"))
    x = 58 + ms / end * (wide - 58 - 14)
    y = 30 + (330 if wide >= 560 else 250) * (1 - above)
    chain = ActionChains(browser)
    chain.move_to_element_with_offset(
        canvas, x - wide / 2, y - tall / 2
    ).click().perform()
    return browser.find_element("id", "detail").text


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 400])
def test_a_click_says_what_a_tensor_is_and_what_another_fate_costs(
    width: int, opened: Any
) -> None:
    browser = opened([shown(STEP, PLAN)], width)
    assert browser.execute_script("return document.body.scrollWidth") <= width
    assert browser.find_element("id", "detail").text.startswith("At the peak")
    top = float(browser.execute_script("return S.geo.most")) / MIB
    said = click(browser, 5, 25 / top)  # 5 of the batch, then 40 of the first op
    assert said.startswith(f"{FIRST}:0")
    for words in ("layer unet/down", "size 40.0 MiB", "fate swapped", "(planned)"):
        assert words in said, said
    assert "swap 80.00 ms out, 40.00 ms in" in said
    assert "recompute 10.00 ms, if its op's inputs are there (next best)" in said
    said = click(browser, 5, 2 / top)
    assert said.startswith("batch")
    assert "bytes 5.00 MiB" in said


@pytest.mark.slow
def test_gaps_lanes_and_the_list_can_be_clicked(opened: Any) -> None:
    browser = opened([shown(STEP, PLAN)])
    rows = browser.find_elements("css selector", "#tensors tbody tr")
    fates = {r.text.split()[0]: r.text.split()[-1] for r in rows if "MiB" in r.text}
    assert fates[f"{THIRD}:0"] == "recomputed"
    assert fates[f"{FIRST}:0"] == "swapped"
    assert fates[f"{SECOND}:0"] == "kept"
    next(row for row in rows if row.text.startswith(f"{THIRD}:0")).click()
    said = browser.find_element("id", "detail").text
    assert "dropped" in said
    assert "recompute 10.00 ms, if its op's inputs are there (planned)" in said
    names = [b.text for b in browser.find_elements("css selector", "#legend button")]
    assert names[-2:] == ["away: on the host", "dropped: made again"]
    browser.find_element("css selector", "#by option[value='kind']").click()
    names = [b.text for b in browser.find_elements("css selector", "#legend button")]
    kinds = ["activations", "updates, and outside of layers", "gradients"]
    assert sorted(names[1:-2]) == sorted(kinds)
    starts = dict(browser.execute_script("return S.copies.map(c => [c[1], c[2]])"))
    lane = browser.execute_script("return [S.geo.laneTop, S.geo.memory]")
    out = click(browser, starts["D2H"] + 1, 1 - (lane[0] + 20 - 30) / lane[1])
    assert out.startswith(f"{FIRST}:0")
    said = click(browser, 15, 1 - (lane[0] + 2 * 34 + 20 - 30) / lane[1])
    assert said.startswith(SECOND), said
    assert "takes 10.00 ms" in said


@pytest.mark.slow
def test_the_text_box_finds_a_layer_and_nothing_is_run_from_a_name(opened: Any) -> None:
    browser = opened([shown(STEP, PLAN)])
    box = browser.find_element("id", "find")
    box.send_keys("UP")
    found = browser.find_element("id", "found").text
    assert found.startswith("1 layer, at most "), found
    first = browser.find_element("css selector", "#tensors tbody tr").text
    assert "unet/up" in first
    legend = browser.find_element("id", "legend").text
    assert "found: UP" in legend
    box.clear()
    box.send_keys("no such layer")
    assert browser.find_element("id", "found").text == "no layer has this name"
    box.clear()
    box.send_keys("script")
    assert "<script>window.hacked" in browser.find_element("id", "tensors").text
    assert browser.execute_script("return window.hacked") is None


@pytest.mark.slow
def test_a_refused_step_says_why_and_steps_without_seconds_count_ops(
    opened: Any,
) -> None:
    plain = SwapPlan(planner="none", order=STEP.order)
    refused = shown(STEP, plain, why="`budget` must be more.\nUse more.")
    fits = shown(STEP, plain, timed=False)
    browser = opened([refused, fits])
    assert browser.find_element("id", "why").text == "`budget` must be more.\nUse more."
    assert browser.find_element("id", "title").text.endswith("does not run")
    browser.find_element("css selector", "#step option[value='1']").click()
    assert not browser.find_element("id", "why").is_displayed()
    assert "the axis counts ops" in browser.find_element("id", "note").text
    said = click(browser, 0.5, 25 * MIB / browser.execute_script("return S.geo.most"))
    assert said.startswith(f"{FIRST}:0")
    assert "swap not estimated" in said
    assert "recompute not estimated" in said
