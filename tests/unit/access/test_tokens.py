"""Tokens: which are accepted, what they permit, and attacks on their algorithm."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from shoal.access.access import Access
from shoal.access.entry import KeyEntry
from shoal.access.files import KeyFiles
from shoal.access.tokens import CLAIMS, TokenSettings, TokenVerifier
from shoal.errors import InvalidArgument, Unauthenticated

SECRET = b"s" * 32
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
PEM = RSA_KEY.public_key().public_bytes(
    serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
)


def jwk(key, **more):
    kind = (
        jwt.algorithms.RSAAlgorithm
        if hasattr(key, "key_size") and not hasattr(key, "curve")
        else jwt.algorithms.ECAlgorithm
    )
    return {**kind.to_jwk(key, as_dict=True), **more}


JWKS = {"keys": [jwk(RSA_KEY.public_key(), kid="r"), jwk(EC_KEY.public_key(), kid="e")]}


def token(key=RSA_KEY, algorithm="RS256", kid="r", drop=(), **claims):
    claims = {
        "iss": "https://id",
        "aud": "shoal",
        "sub": "ada",
        "exp": time.time() + 600,
        "shoal_key": "role",
        **claims,
    }
    for name in drop:
        del claims[name]
    return jwt.encode(claims, key, algorithm, headers={"kid": kid} if kid else {}).encode()


@pytest.fixture
def settings(tmp_path):
    (tmp_path / "jwks.json").write_text(json.dumps(JWKS))
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return TokenSettings(
        "https://id", "shoal", str(tmp_path / "jwks.json"), str(tmp_path / "secret")
    )


@pytest.fixture
def access(settings):
    entries = [KeyEntry("role", apis=("inference", "health"), models=("a*",), requests_in_flight=1)]
    return Access(entries, tokens=TokenVerifier(settings))


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [
        (RSA_KEY, "RS256", "r"),
        (RSA_KEY, "RS256", None),  # the only key of that algorithm
        (EC_KEY, "ES256", "e"),
        (SECRET, "HS256", None),
        (SECRET, "HS256", "whatever"),
    ],
)
def test_valid_tokens(access, key, algorithm, kid):
    made = token(key, algorithm, kid)
    caller = access.identify(None, b"Bearer " + made)
    assert caller.name == "role:ada"
    assert caller.apis == {"inference", "health"}
    assert caller.may_use("ab")
    assert not caller.may_use("b")
    assert access.identify(None, b"Bearer " + made) is caller  # verified once


def forged(head, claims, key):
    """A token signed with HMAC by hand: libraries refuse to sign with a public key."""

    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part(head) + b"." + part(claims)
    signature = hmac.new(key, signed, hashlib.sha256).digest()
    return signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")


CLAIMS_OF_ADA = {
    "iss": "https://id",
    "aud": "shoal",
    "sub": "ada",
    "exp": time.time() + 600,
    "shoal_key": "role",
}


@pytest.mark.parametrize(
    "attack",
    [
        forged({"alg": "HS256", "kid": "r"}, CLAIMS_OF_ADA, PEM),
        forged({"alg": "HS256", "kid": "r"}, CLAIMS_OF_ADA, json.dumps(JWKS["keys"][0]).encode()),
        forged({"alg": "none", "kid": "r"}, CLAIMS_OF_ADA, b""),
        forged({"alg": "none"}, CLAIMS_OF_ADA, b"").rpartition(b".")[0] + b".",
        forged({"alg": "HS512"}, CLAIMS_OF_ADA, SECRET),
        forged({"alg": ["RS256"], "kid": "r"}, CLAIMS_OF_ADA, SECRET),
        forged({"alg": "RS256", "kid": "r"}, CLAIMS_OF_ADA, SECRET),
        forged({"alg": "RS256", "jwk": jwk(EC_KEY.public_key())}, CLAIMS_OF_ADA, SECRET),
        forged({}, CLAIMS_OF_ADA, SECRET),
        token(rsa.generate_private_key(65537, 2048)),
        token(ec.generate_private_key(ec.SECP256R1()), "ES256", "e"),
        token(EC_KEY, "ES256", "r"),
        token(RSA_KEY, "RS256", "e"),
        token(RSA_KEY, "RS256", "unknown"),
        token()[:-4] + b"AAAA",
        b"..",
        b"a.b.c",
        b"\xff.\xff.\xff",
        ("[" * 2000).encode() + b"..",
    ],
)
def test_forged_tokens(access, attack):
    with pytest.raises(Unauthenticated, match="the token is not valid: ") as caught:
        access.identify(None, b"Bearer " + attack)
    assert attack.decode("latin-1") not in caught.value.message
    assert access.read()[0].refused["unknown_key"] == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": time.time() - 60}, "it has expired"),
        ({"nbf": time.time() + 600}, "not valid yet"),
        ({"iss": "https://other"}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"drop": ("exp",)}, "lacks one of the claims"),
        ({"drop": ("aud",)}, "lacks one of the claims"),
        ({"drop": ("iss",)}, "lacks one of the claims"),
        ({"exp": "soon"}, "it is malformed"),
        ({"shoal_key": ["role"]}, "'shoal_key' is not a text"),
        ({"shoal_apis": 5}, "'shoal_apis' is not a list of texts"),
        ({"shoal_key": "nobody"}, "which the key file does not have"),
        ({"drop": ("shoal_key",)}, "permits nothing: it needs the claim 'shoal_key'"),
    ],
)
def test_tokens_that_are_not_for_us(access, changes, reason):
    if changes.get("exp") == "soon":
        with pytest.raises(Unauthenticated, match=reason):
            access.identify(
                None, b"Bearer " + forged({"alg": "HS256"}, {**CLAIMS_OF_ADA, **changes}, SECRET)
            )
        return
    with pytest.raises(Unauthenticated, match=reason):
        access.identify(None, b"Bearer " + token(**changes))


def test_claims_narrow_what_the_entry_permits(access):
    made = token(shoal_apis="openid inference trace", shoal_models=["*b"])
    caller = access.identify(None, b"Bearer " + made)
    assert caller.apis == {"inference"}
    assert [caller.may_use(name) for name in ("ab", "aa", "bb")] == [True, False, False]
    with pytest.raises(Exception, match="some models only"):
        caller.check_all_models()


def test_a_token_without_an_entry(access):
    made = token(drop=("shoal_key",), shoal_apis=["inference"], shoal_models="m n")
    caller = access.identify(None, b"Bearer " + made)
    assert caller.name == "jwt:ada"
    assert caller.apis == {"inference"}
    assert [caller.may_use(name) for name in ("m", "o")] == [True, False]
    assert not caller.upload


def test_other_claims_and_a_default_entry(settings):
    settings = TokenSettings(
        settings.issuer,
        settings.audience,
        settings.jwks,
        claims={**CLAIMS, "name": "email", "entry": "role"},
        default_entry="role",
    )
    entries = [KeyEntry("role"), KeyEntry("admin", apis=("*",))]
    access = Access(entries, tokens=TokenVerifier(settings))
    assert access.identify(None, b"Bearer " + token(email="a@b")).name == "role:a@b"
    assert access.identify(None, b"Bearer " + token(role="admin")).name == "admin"


def test_tokens_of_one_owner_share_a_quota(access):
    first = access.identify(None, b"Bearer " + token(jti="1"))
    second = access.identify(None, b"Bearer " + token(jti="2"))
    other = access.identify(None, b"Bearer " + token(sub="bob"))
    first.begin(1)
    with pytest.raises(Exception, match="1 requests in flight"):
        second.begin(1)
    other.begin(1)
    assert first.counts is other.counts
    assert first.counts.name == "role"


def test_a_token_ends_when_it_expires(access):
    caller = access.identify(None, b"Bearer " + token(exp=time.time() + 100))
    left = caller.ends_ns - time.monotonic_ns()
    assert 90e9 < left < 101e9


def test_the_cache_of_tokens_is_bounded(access, monkeypatch):
    monkeypatch.setattr("shoal.access.access._MOST_TOKENS", 3)
    made = [token(SECRET, "HS256", None, sub=str(n)) for n in range(6)]
    callers = [access.identify(None, b"Bearer " + each) for each in made]
    assert len(access._verified) == 3
    assert access.identify(None, b"Bearer " + made[-1]) is callers[-1]


def test_changed_keys_end_tokens(settings, tmp_path):
    keys = tmp_path / "keys.jsonl"
    keys.write_text(KeyEntry("role").line() + "\n")
    keys.chmod(0o600)
    files = KeyFiles(str(keys), settings)
    made = b"Bearer " + token()
    caller = files.access.identify(None, made)
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [jwk(EC_KEY.public_key(), kid="r2")]}))
    files.reload_tokens(lambda work: work())
    assert not caller.admit(0, 1)
    with pytest.raises(Unauthenticated):
        files.access.identify(None, made)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{\n{", "line 2: not a JSON document"),
        ("[]", "is not a JWKS document"),
        ('{"keys": [1]}', "is not a JWKS document"),
        ('{"keys": []}', "has 0 keys"),
        (
            json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}),
            "key 0: only RSA keys for RS256 and EC keys for ES256",
        ),
        (json.dumps({"keys": [jwk(RSA_KEY.public_key(), alg="PS256")]}), "key 0: only RSA keys"),
        (json.dumps({"keys": [jwk(RSA_KEY)]}), "this is a private key"),
        (json.dumps({"keys": [{"kty": "RSA", "n": "AQAB"}]}), "not a valid key"),
        (
            json.dumps({"keys": [jwk(rsa.generate_private_key(65537, 1024).public_key())]}),
            "has 1024 bits",
        ),
        (
            json.dumps({"keys": [jwk(ec.generate_private_key(ec.SECP384R1()).public_key())]}),
            "ES256 needs the curve P-256",
        ),
    ],
)
def test_a_jwks_file_that_cannot_be_used(tmp_path, content, reason):
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(InvalidArgument) as caught:
        TokenVerifier(TokenSettings("i", "a", str(path)))
    assert reason in caught.value.message
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("secret", "reason"),
    [(b"short", "5 bytes; HS256 needs at least 32"), (PEM, "a key in PEM or SSH format")],
)
def test_a_secret_that_cannot_be_used(tmp_path, secret, reason):
    path = tmp_path / "secret"
    path.write_bytes(secret)
    with pytest.raises(InvalidArgument) as caught:
        TokenVerifier(TokenSettings("i", "a", "", str(path)))
    assert reason in caught.value.message
    assert secret.decode() not in caught.value.message
