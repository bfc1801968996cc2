"""Tokens (JWT) of an identity provider: verified with PyJWT, by keys that each have one algorithm.

    token --kid, alg--> key --PyJWT: signature, iss, aud, exp, nbf--> TokenClaims

Which algorithm is used depends on the key, never on the token: a token that names another one is
refused before any signature is computed. So a public key cannot be used as a secret for HS256, and
`none` is no algorithm.
"""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from shoal.errors import InvalidArgument, Unauthenticated, Unavailable

CLAIMS = {
    "name": "sub",
    "entry": "shoal_key",
    "apis": "shoal_apis",
    "models": "shoal_models",
}
_ALGORITHMS = {"RSA": "RS256", "EC": "ES256"}
_LEAST_RSA_BITS = 2048
_LEAST_SECRET_BYTES = 32
_LEEWAY_SECS = 10  # by which the clocks of two machines may differ
_LATEST = 4e9  # seconds since the epoch
_MOST_KEYS = 256
_LONGEST_NAME = 128


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The --jwt options."""

    issuer: str
    audience: str
    jwks: str = ""  # file
    secret_file: str = ""
    claims: Mapping[str, str] = field(default_factory=lambda: dict(CLAIMS))
    default_entry: str = ""  # for tokens that name none

    @property
    def files(self) -> list[str]:
        """The files to read."""
        return [name for name in (self.jwks, self.secret_file) if name]


class TokenClaims(NamedTuple):
    """What is read from a valid token. None: the token has no such claim."""

    subject: str
    entry: str
    apis: tuple[str, ...] | None
    models: tuple[str, ...] | None
    expires_at: float


class _VerifyingKey(NamedTuple):
    algorithm: str
    key: Any
    key_id: str | None


class TokenVerifier:
    """Verifies tokens with the keys of the files, as they are when it is made."""

    def __init__(self, settings: TokenSettings) -> None:
        """Raises InvalidArgument for a file that cannot be used, Unavailable without PyJWT."""
        self._jwt = _import_jwt()
        self._settings = settings
        self._keys: list[_VerifyingKey] = []
        if settings.jwks:
            self._keys += self._read_jwks(Path(settings.jwks))
        if settings.secret_file:
            secret = _read_secret(Path(settings.secret_file))
            self._keys.append(_VerifyingKey("HS256", secret, None))

    @property
    def claim_names(self) -> Mapping[str, str]:
        """The names of the claims, by what they mean."""
        return self._settings.claims

    def verify(self, token: bytes) -> TokenClaims:
        """The claims of a valid token. Raises Unauthenticated with the reason."""
        jwt, settings = self._jwt, self._settings
        try:
            text = token.decode("ascii")
            head = _head(text)
            key = self._choose(head.get("alg"), head.get("kid"))
            claims = jwt.decode(
                text,
                key.key,
                algorithms=[key.algorithm],
                audience=settings.audience,
                issuer=settings.issuer,
                leeway=_LEEWAY_SECS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except UnicodeDecodeError:
            raise _invalid("it is not ASCII") from None
        except jwt.ExpiredSignatureError:
            raise _invalid("it has expired; get a new one") from None
        except jwt.PyJWTError as error:
            raise _invalid(_reason(jwt, error)) from None
        except (ValueError, TypeError, RecursionError):  # claims of a wrong type
            raise _invalid("it is malformed") from None
        return self._read_claims(claims)

    def _choose(self, algorithm: object, key_id: object) -> _VerifyingKey:
        fitting = [key for key in self._keys if key.algorithm == algorithm]
        if not fitting:
            known = ", ".join(sorted({key.algorithm for key in self._keys}))
            raise _invalid(f"its algorithm is none of those that this server accepts ({known})")
        if key_id is not None:
            named = [key for key in fitting if key.key_id in (None, key_id)]
            exact = [key for key in named if key.key_id == key_id]
            fitting = exact or named
        if not fitting:
            raise _invalid("it was signed with a key that this server does not know")
        if len(fitting) > 1:
            raise _invalid("it does not say which key it was signed with (kid)")
        return fitting[0]

    def _read_claims(self, claims: Mapping[str, Any]) -> TokenClaims:
        names = self._settings.claims
        subject = claims.get(names["name"])
        entry = claims.get(names["entry"], self._settings.default_entry)
        if type(entry) is not str:
            raise _invalid(f"its claim '{names['entry']}' is not a text")
        return TokenClaims(
            str(subject)[:_LONGEST_NAME] if isinstance(subject, str | int) else "",
            entry,
            _texts(claims, names["apis"]),
            _texts(claims, names["models"]),
            min(float(claims["exp"]), _LATEST),
        )

    def _read_jwks(self, path: Path) -> list[_VerifyingKey]:
        try:
            document = json.loads(_read(path))
            listed = document["keys"]
            if type(listed) is not list or not all(type(each) is dict for each in listed):
                raise TypeError
        except json.JSONDecodeError as error:
            raise InvalidArgument(
                f"{path}, line {error.lineno}: not a JSON document: {error.msg}"
            ) from None
        except (KeyError, TypeError, RecursionError):
            raise InvalidArgument(
                f'{path} is not a JWKS document: {{"keys": [{{"kty": …}}, …]}}'
            ) from None
        found = [
            self._read_jwk(path, index, each)
            for index, each in enumerate(listed)
            if each.get("use", "sig") == "sig"
        ]
        if not 0 < len(found) <= _MOST_KEYS:
            raise InvalidArgument(
                f"{path} has {len(found)} keys for signatures; it needs 1 to {_MOST_KEYS}"
            )
        return found

    def _read_jwk(self, path: Path, index: int, values: dict[str, Any]) -> _VerifyingKey:
        place = f"{path}, key {index}"
        algorithm = _ALGORITHMS.get(values.get("kty", ""))
        if algorithm is None or values.get("alg", algorithm) != algorithm:
            raise InvalidArgument(
                f"{place}: only RSA keys for RS256 and EC keys for ES256 can be used here; the "
                f"secret of HS256 belongs into the file of --jwt-secret-file"
            )
        if algorithm == "ES256" and values.get("crv") != "P-256":
            raise InvalidArgument(f"{place}: ES256 needs the curve P-256")
        if "d" in values:
            raise InvalidArgument(
                f"{place}: this is a private key, which only the identity provider should have; "
                f"use its public key"
            )
        key_id = values.get("kid")
        try:
            key = self._jwt.PyJWK(values, algorithm).key
        except (self._jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidArgument(f"{place}: not a valid key: {error}") from None
        if algorithm == "RS256" and key.key_size < _LEAST_RSA_BITS:
            raise InvalidArgument(
                f"{place}: the key has {key.key_size} bits, at least {_LEAST_RSA_BITS} are needed"
            )
        return _VerifyingKey(algorithm, key, key_id if type(key_id) is str else None)


def _head(token: str) -> dict[str, Any]:
    """The header of a token, to choose a key by; PyJWT reads and checks it again.

    PyJWT's own function parses the whole token, which would double the cost of a forged one.
    """
    encoded = token.partition(".")[0]
    head = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    if type(head) is not dict:
        raise _invalid("it is malformed")
    return head


def _read_secret(path: Path) -> bytes:
    secret = _read(path).rstrip(b"\r\n")
    if len(secret) < _LEAST_SECRET_BYTES:
        raise InvalidArgument(
            f"{path}: the secret has {len(secret)} bytes; HS256 needs at least "
            f"{_LEAST_SECRET_BYTES} random ones"
        )
    if secret.startswith((b"-----BEGIN", b"ssh-")):
        raise InvalidArgument(
            f"{path}: this is a key in PEM or SSH format, not a secret of HS256; public keys "
            f"belong into --jwt-jwks"
        )
    return secret


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from None


def _texts(claims: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    """A claim with several texts: a list, or one text with spaces between them, as in `scope`."""
    value = claims.get(name)
    if value is None:
        return None
    texts: Sequence[Any] = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(type(text) is str for text in texts):
        raise _invalid(f"its claim '{name}' is not a list of texts")
    return tuple(texts)


def _reason(jwt: Any, error: Exception) -> str:
    for kind, text in (
        (jwt.InvalidAudienceError, "it is for another audience"),
        (jwt.InvalidIssuerError, "it is from another issuer"),
        (jwt.ImmatureSignatureError, "it is not valid yet"),
        (jwt.MissingRequiredClaimError, "it lacks one of the claims exp, iss and aud"),
        (jwt.InvalidSignatureError, "its signature is wrong"),
    ):
        if isinstance(error, kind):
            return str(text)
    return "it is malformed"


def _invalid(reason: str) -> Unauthenticated:
    return Unauthenticated(f"the token is not valid: {reason}")


def _import_jwt() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import cryptography  # noqa: F401 - RS256 and ES256 need it
            import jwt
    except ImportError as error:
        raise Unavailable(
            f"tokens need the package PyJWT ({error}); install it with pip install 'shoal[jwt]'"
        ) from None
    return jwt
