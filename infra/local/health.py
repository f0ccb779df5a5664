"""Asking a service over HTTP how it is."""

import urllib.error
import urllib.request

# Never by way of a proxy: everything asked here is on loopback.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(port, path, seconds=2.0):
    """Status and body of a GET on loopback; (0, "") when nobody answers."""
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=seconds) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError:
        return 0, ""
