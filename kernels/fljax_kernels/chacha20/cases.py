"""Published test vectors, and shapes of draws, shared by tests and bench."""

import dataclasses

ONES = bytes(range(32)).hex()


@dataclasses.dataclass(frozen=True)
class Vector:
    """key, nonce: bytes in hexadecimal. stream: the 64 bytes of block `counter`."""

    name: str
    key: str
    counter: int
    nonce: str
    stream: str

    def __str__(self) -> str:
        return self.name


VECTORS = (
    Vector(
        "section 2.3.2",
        ONES,
        1,
        "000000090000004a00000000",
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    Vector(
        "A.1 #1",
        "00" * 32,
        0,
        "00" * 12,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    Vector(
        "A.1 #2",
        "00" * 32,
        1,
        "00" * 12,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    Vector(
        "A.1 #3",
        "00" * 31 + "01",
        1,
        "00" * 12,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    Vector(
        "A.1 #4",
        "00ff" + "00" * 30,
        2,
        "00" * 12,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    Vector(
        "A.1 #5",
        "00" * 32,
        0,
        "00" * 11 + "02",
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
)
SHAPES = ((), (1,), (16,), (17,), (3, 5), (1000,), (50, 23), (0, 4))
