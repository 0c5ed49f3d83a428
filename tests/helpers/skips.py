"""Skipping is for developers' machines: where the tests decide (`CI` is set), what cannot run has failed.

A hook of pytest, which conftest.py imports.  Only a processor cannot be installed: a test that needs another one may be
skipped anywhere, with the reason that `OTHER_PROCESSOR` starts.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

OTHER_PROCESSOR = "this processor has no"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    excused = hasattr(report, "wasxfail") or OTHER_PROCESSOR in str(report.longrepr)
    if os.environ.get("CI") and report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped, though CI is set ({call.excinfo and call.excinfo.value}): {item.nodeid}"
    return report
