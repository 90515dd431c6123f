"""``kvplan check`` as JUnit XML: a test case per limit, as CI servers (GitLab, Jenkins, Azure) read it."""

import re
from xml.etree import ElementTree as ET

from kvplan.check.results import Check
from kvplan.report.check_words import bound, message, summary, title

_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 has no way to write."""


def text(check: Check) -> str:
    """The document. What is within noise passes and says so in ``system-out``."""
    file = _clean(check.traffic.file)
    counts = {"tests": str(len(check.limits)), "failures": str(len(check.broken)), "errors": "0", "skipped": "0"}
    suites = ET.Element("testsuites", {"name": "kvplan", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": f"kvplan check {file}", **counts})
    for limit in check.limits:
        name = title(limit) if limit.name == "fits" else f"{title(limit)} {bound(limit)}"
        place = {"file": file} if limit.line is None else {"file": file, "line": str(limit.line)}
        case = ET.SubElement(suite, "testcase", {"name": _clean(name), "classname": f"kvplan.{limit.name}", **place})
        said = _clean(message(limit))
        if not limit.passed:
            where = file if limit.line is None else f"{file}:{limit.line}"
            failure = ET.SubElement(case, "failure", {"message": said, "type": limit.certainty})
            failure.text = f"{where}: {said}"
        else:
            ET.SubElement(case, "system-out").text = said
    ET.SubElement(suite, "system-out").text = _clean(summary(check))
    ET.indent(suites)
    # Signs beyond ASCII are written as references, so that no terminal's encoding can spoil the document.
    written: bytes = ET.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return f"{written.decode('ascii')}\n"


def _clean(text: str) -> str:
    return _UNPRINTABLE.sub("?", text)
