"""Who may use the server, for what and how much: keys, tokens and quotas. Knows no protocol.

    key file --read_keys--> KeyEntry --> Access --identify(credential)--> Caller --> checks, quotas
    JWKS, secret --TokenVerifier------------'

`KeyFiles` reads the files, again when they change. Frontends find the credential in a request.
"""
