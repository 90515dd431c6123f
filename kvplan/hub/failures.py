"""Every way in which the Hub gives no answer, each with its own message and the next step to take."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.errors import ModelUnavailableError, without_user_info


class HubUnavailableError(ModelUnavailableError):
    """No facts from the Hub. ``reason`` is short, for the line that names the source used instead; None offline.

    ``catalogue_may_answer``: bundled facts may stand in; not for a repository, revision or file that the Hub says does
    not exist, because facts under the same name could be of another model. ``needs_access``: the user can open the
    model (terms, a token), which is worth saying even where bundled facts answer.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        reason: str | None = None,
        catalogue_may_answer: bool = True,
        needs_access: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.needs_access = needs_access
        self.reason = reason
        self.catalogue_may_answer = catalogue_may_answer


@dataclass(frozen=True, kw_only=True)
class Target:
    """The repository that the Hub is asked for, as error messages name it."""

    model_id: str
    revision: str | None
    endpoint: str
    with_token: bool

    @property
    def shown_endpoint(self) -> str:
        return without_user_info(self.endpoint)

    @property
    def page(self) -> str:
        return f"{self.shown_endpoint}/{self.model_id}"

    @property
    def name(self) -> str:
        return f"{self.model_id}@{self.revision}" if self.revision else self.model_id


_LOCAL = "or give a local config.json"
_GATED_HINT = "accept its terms on {page}, then set a token (HF_TOKEN) or run: hf auth login; " + _LOCAL


def offline(target: Target) -> HubUnavailableError:
    """The network is forbidden and the cache holds nothing."""
    revision = f" --revision {target.revision}" if target.revision else ""
    return HubUnavailableError(
        f"{target.name} is not in the Hub's cache, and offline mode is on",
        hint=f"on a machine with network: hf download {target.model_id} config.json{revision}, and copy HF_HOME; "
        f"{_LOCAL}",
    )


def unreachable(target: Target, what: str) -> HubUnavailableError:
    """No connection: an unknown host, a refused or broken connection, a wrong proxy or certificate."""
    certificate = "CERTIFICATE" in what.upper()
    way = (
        "point SSL_CERT_FILE to your company's certificates"
        if certificate
        else "set HF_ENDPOINT (a mirror) or HTTPS_PROXY, or use --offline for the cache and bundled models"
    )
    return HubUnavailableError(
        f"the Hub at {target.shown_endpoint} cannot be reached: {what}",
        hint=f"{way}; {_LOCAL}",
        reason="the Hub cannot be reached",
    )


def timed_out(target: Target, seconds: float) -> HubUnavailableError:
    """Connected, but no answer in time."""
    return HubUnavailableError(
        f"the Hub at {target.shown_endpoint} did not answer within {seconds:g} s",
        hint=f"try again, allow more (HF_HUB_DOWNLOAD_TIMEOUT=60), use a mirror (HF_ENDPOINT) or --offline; {_LOCAL}",
        reason="the Hub timed out",
    )


def broken_off(target: Target, file: str, what: str) -> HubUnavailableError:
    """A body that ends early, or something other than the requested file (a proxy's page)."""
    return HubUnavailableError(
        f"{target.shown_endpoint} sent no usable {file}: the download broke off, or a proxy answered: {what}",
        hint=f"try again, or see what {target.page} shows in a browser; {_LOCAL}",
        reason="the Hub's answer was cut short",
    )


def no_config(target: Target, names: tuple[str, ...]) -> HubUnavailableError:
    """The repository exists but has no config.json."""
    gguf = next((name for name in names if name.endswith(".gguf")), None)
    hint = (
        f"it has GGUF files: name one, such as {target.model_id}/{gguf} (only its header is read)"
        if gguf
        else "give the id of a repository in the Transformers format, or a local config.json"
    )
    return HubUnavailableError(
        f"{target.name} has no config.json", hint=hint, reason="no config.json", catalogue_may_answer=False
    )


def no_file(target: Target, file: str) -> HubUnavailableError:
    """The repository exists but does not have the named file."""
    return HubUnavailableError(
        f"{target.name} has no file {file}",
        hint=f"see its files on {target.page}/tree/{target.revision or 'main'}",
        catalogue_may_answer=False,
    )


def refused(target: Target, status: int, headers: Mapping[str, str]) -> HubUnavailableError:
    """An HTTP status other than success. ``X-Error-Code`` is the Hub's own word for the cause."""
    code, detail = headers.get("x-error-code", ""), headers.get("x-error-message", "")
    if status == 401:
        return _unauthorised(target, code, detail)
    if status == 403:
        return _forbidden(target, code, detail)
    if status == 404 or code in {"RepoNotFound", "RevisionNotFound", "EntryNotFound"}:
        return _not_found(target, code)
    if status == 429:
        after = headers.get("retry-after")
        when = f"in {after} s" if after and after.isdecimal() else f"after {after}" if after else "in a few minutes"
        more = "" if target.with_token else "set a token (HF_TOKEN) for a higher limit, "
        return HubUnavailableError(
            f"the Hub limits the rate of requests (429); try again {when}",
            hint=f"wait, {more}or use --offline; {_LOCAL}",
            reason="the Hub answered 429",
        )
    kind = "failed" if status >= 500 else "sent an unexpected answer"
    return HubUnavailableError(
        f"the Hub at {target.shown_endpoint} {kind} ({status}){f': {detail}' if detail else ''}",
        hint=f"try again later, or use --offline for the cache and bundled models; {_LOCAL}",
        reason=f"the Hub answered {status}",
    )


def _unauthorised(target: Target, code: str, detail: str) -> HubUnavailableError:
    if target.with_token and code != "GatedRepo":
        message = f"the Hub does not accept the token, or {target.name} does not exist (401)"
        hint = f"renew the token (HF_TOKEN, or hf auth login) and check the name; {_LOCAL}"
    elif code == "GatedRepo" or "gated" in detail.lower() or "restricted" in detail.lower():
        message = f"{target.name} is gated, and no token was sent that has access (401)"
        hint = _GATED_HINT.format(page=target.page)
    else:
        message = f"{target.name} is private, gated or does not exist: the Hub asks for a token (401)"
        hint = f"check the name; if it is right, set a token (HF_TOKEN) or run: hf auth login; {_LOCAL}"
    return HubUnavailableError(message, hint=hint, reason="the Hub answered 401", needs_access=True)


def _forbidden(target: Target, code: str, detail: str) -> HubUnavailableError:
    if code == "GatedRepo":
        message = f"{target.name} is gated, and the token's account has no access (403)"
        hint = f"request access on {target.page} with the account that HF_TOKEN belongs to; {_LOCAL}"
    else:
        message = f"access to {target.name} is forbidden (403){f': {detail}' if detail else ''}"
        hint = f"give the token (HF_TOKEN) read access to this repository, or ask your proxy's operator; {_LOCAL}"
    return HubUnavailableError(message, hint=hint, reason="the Hub answered 403", needs_access=True)


def _not_found(target: Target, code: str) -> HubUnavailableError:
    if target.revision is not None and code != "RepoNotFound":
        message = f"{target.model_id} has no revision {target.revision!r} (404)"
        hint = f"its branches and tags are on {target.page}/tree/main; without @{target.revision} main is used"
    else:
        message = f"there is no model {target.model_id} at {target.shown_endpoint} (404)"
        hint = f"check the name on {target.shown_endpoint}/models; {_LOCAL}"
    return HubUnavailableError(message, hint=hint, reason="the Hub answered 404", catalogue_may_answer=False)
