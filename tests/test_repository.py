"""What people expect around the code is there, and agrees with it."""

import os
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_hooks_run_the_linters_of_the_projects_own_environment():
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local"
    assert {hook["id"] for hook in local["hooks"]} == {"ruff-check", "ruff-format", "mypy"}
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


def test_the_workflow_runs_what_ci_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["test"]["steps"][-1] == {"run": ".ci/run"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_a_template_is_short():
    for name in ("ISSUE_TEMPLATE.md", "pull_request_template.md"):
        assert len((ROOT / ".github" / name).read_text().splitlines()) == 2


def test_make_runs_the_tests_on_two_cores_with_pinned_versions():
    makefile, pins = (ROOT / "Makefile").read_text(), (ROOT / "constraints.txt").read_text()
    assert makefile.count("-m pytest $(PARALLEL)") == makefile.count("-m pytest") == 2
    assert all(f"\n{name}==" in pins for name in ("pytest-xdist", "execnet"))
