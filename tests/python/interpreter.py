"""Code in an interpreter of its own, whose process a test may configure, limit or kill."""

import json
import os
import subprocess
import sys

# Prints what `code` leaves in `result`, or its error.
SCRIPT = """
import json
{preamble}
try:
{code}
except Exception as error:
    result = [type(error).__name__, str(error)]
print(json.dumps(result))
"""


def run(code, preexec_fn=None, preamble="import ringloader", **environment):
    """`result` of `code` in a fresh interpreter, with only these RINGLOADER_ variables."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RINGLOADER_")}
    indented = "\n".join("    " + line for line in code.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(code=indented, preamble=preamble)],
        env={**inherited, **environment},
        preexec_fn=preexec_fn,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def info(preexec_fn=None, **environment):
    return run("result = ringloader.engine_info()", preexec_fn, **environment)
