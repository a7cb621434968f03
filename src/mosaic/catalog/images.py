"""Image games: small environments of MOSAIC with Atari-like observations, to show that image algorithms learn."""

from mosaic.catalog.environment import GYMNASIUM, Environment

ENVIRONMENTS = (
    Environment(
        "mosaic/Catch-v0",
        "gymnasium",
        "discrete",
        "image",
        "Catch a falling ball with a paddle: 1 or −1 for each ball, four grey frames of 84×84 as in Atari. Playing at "
        "random gives −0.8, 0.9 is solved.",
        GYMNASIUM,
        "image-games",
        0.9,
    ),
)
