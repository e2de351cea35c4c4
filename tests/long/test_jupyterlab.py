"""The course as a reader meets it: JupyterLab in a browser, opened, run, and followed from page to page."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CONNECTED = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
}"""
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"  # the notebook in front


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api", timeout=10).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def server(browser, tmp_path_factory):
    """JupyterLab as ``make lab`` starts it, on a free port; its address and token."""
    settings = tmp_path_factory.mktemp("jupyter")
    checkout = tmp_path_factory.mktemp("checkout")  # a copy: JupyterLab saves what it opens
    shutil.copy(ROOT / "start_here.ipynb", checkout)
    for folder in ("labs", "images", "source_code"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    token = secrets.token_hex(16)
    overrides = settings / "share" / "jupyter" / "lab" / "settings"
    overrides.mkdir(parents=True)
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    whole = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}  # cells out of sight are asked, too
    (overrides / "overrides.json").write_text(json.dumps(quiet | whole))
    environment = os.environ | {
        "LAB_MODE": "recorded",
        "JUPYTER_CONFIG_DIR": str(settings / "config"),
        "JUPYTER_DATA_DIR": str(settings / "data"),
        "IPYTHONDIR": str(settings / "ipython"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={checkout}", f"--IdentityProvider.token={token}", "--allow-root"]
    command += [f"--LabApp.app_settings_dir={overrides}", "--LabApp.expose_app_in_browser=True"]
    command += [f"--LabApp.user_settings_dir={settings / 'user'}", f"--LabApp.workspaces_dir={settings / 'workspaces'}"]
    log, deadline = settings / "log", time.monotonic() + 300
    for _ in range(3):  # a port that was free may be another's a moment later
        port = free_port()
        with log.open("w") as said:
            process = subprocess.Popen([*command, f"--port={port}"], env=environment, stdout=said, stderr=said)
        address = f"http://127.0.0.1:{port}"
        while process.poll() is None and not answers(address) and time.monotonic() < deadline:
            time.sleep(0.2)
        if process.poll() is None:
            break
    try:
        assert process.poll() is None and answers(address), log.read_text()[-3000:]
        yield address, token
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:  # it asks for confirmation where it thinks that a person is there
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def page(browser):
    """A page that remembers which of Jupyter's contents were not found."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(120_000)  # on a machine that is busy
    tab.missing = []
    tab.on("response", lambda r: r.status == 404 and "/api/contents" in r.url and tab.missing.append(r.url))
    return tab


def open_notebook(page, server, path: str) -> None:
    address, token = server
    page.goto(f"{address}/lab/tree/{path}?token={token}&reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_function(CONNECTED)  # cells that are run before have no kernel to go to, and JupyterLab drops them


def run_all(page) -> None:
    """Edit → Clear Outputs of All Cells, Run → Run All Cells, and wait until every cell has its number again."""
    from playwright.sync_api import TimeoutError as TooLong

    prompts = f"[...document.querySelectorAll('{SHOWN} .jp-CodeCell .jp-InputPrompt')].map(p => p.textContent)"
    # By its command: on a busy machine a click into a menu that is still opening can go astray.
    page.wait_for_function("() => window.jupyterapp.commands.isEnabled('notebook:clear-all-cell-outputs')")
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs').then(() => null)")
    page.wait_for_function(f"{prompts}.every(text => text === '[ ]:')")
    until = time.monotonic() + 300
    while any(text in page.evaluate(prompts) for text in ("[*]:", "[ ]:")) and time.monotonic() < until:
        if "[*]:" not in page.evaluate(prompts):  # or it hits another line, which runs one cell
            page.click("#jp-MainMenu >> text=Run")
            page.click(".lm-Menu-item:has-text('Run All Cells')")
        with contextlib.suppress(TooLong):
            page.wait_for_function(f"{prompts}.every(text => text !== '[*]:' && text !== '[ ]:')", timeout=20_000)
    state = page.locator(f"{SHOWN} .jp-Notebook-ExecutionIndicator").get_attribute("data-status")
    numbers = page.evaluate(prompts)
    assert not {"[*]:", "[ ]:"} & {*numbers}, f"the kernel is {state}, and cells lack their numbers: {numbers}"


def test_the_token_is_asked_for(server):
    address, _ = server
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{address}/api/contents/start_here.ipynb", timeout=120)
    assert refused.value.code == 403


def test_the_front_page_runs_and_its_picture_shows(page, server):
    open_notebook(page, server, "start_here.ipynb")
    run_all(page)
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    page.wait_for_selector(".jp-OutputArea:has-text('Recorded mode')")
    images = "[...document.querySelectorAll('.jp-RenderedMarkdown img')]"
    page.wait_for_function(f"{images}.length > 0 && {images}.every(img => img.naturalWidth > 300)")


def test_from_the_front_page_one_gets_to_lab_1_and_on_to_lab_2(page, server):
    open_notebook(page, server, "start_here.ipynb")
    page.click("a:has-text('What a profile shows')")
    page.wait_for_selector("h1:has-text('Lab 1')")
    page.locator(f"{SHOWN} a:has-text('Next →')").first.click()
    page.wait_for_selector("h1:has-text('Lab 2')")
    assert page.missing == []


def test_a_lab_runs_from_top_to_bottom(page, server):
    open_notebook(page, server, "labs/02_pytorch_mnist.ipynb")
    run_all(page)
    assert page.locator(SHOWN).locator("[data-mime-type='application/vnd.jupyter.error']").count() == 0
    assert page.missing == []


def test_an_answer_stays_folded_until_its_cell_is_opened_or_run(page, server):
    open_notebook(page, server, "labs/01_introduction.ipynb")
    table = page.locator(f"{SHOWN} .jp-CodeCell").filter(has_text="lab01.clocks_table")
    table.scroll_into_view_if_needed()
    folded = table.locator(".jp-OutputPlaceholder")
    folded.wait_for()
    assert table.locator(".jp-OutputArea-output").count() == 0
    folded.click()
    table.locator(".jp-OutputArea-output").first.wait_for()
    compared = page.locator(f"{SHOWN} .jp-CodeCell").filter(has_text="my_product_ms, timed")
    compared.locator(".jp-OutputPlaceholder").wait_for()
    assert "measured" not in compared.inner_text(), "what is shown of a fold is its first line"
    run_all(page)
    compared.locator(".jp-OutputArea-output", has_text="no prediction made").wait_for()
    assert page.locator(f"{SHOWN} .jp-OutputPlaceholder").count() == 0
