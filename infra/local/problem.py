"""How the commands speak: progress in plain sentences, a failure in one."""

import signal
import sys


class Problem(Exception):
    """Something that the person at the keyboard can mend; the text says what is wrong and what to do."""


def say(text):
    """Print one line of progress at once, also into a pipe."""
    print(text, flush=True)


def command(main):
    """Run a command's `main`: a Problem becomes a sentence and exit 1; SIGTERM and Ctrl-C still run every `finally`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except Problem as problem:
        sys.exit(f"{sys.argv[0]}: {problem}")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
