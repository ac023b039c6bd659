"""What the published CLIP weights were trained and are used with."""

from __future__ import annotations

PROMPT = "A photo depicts "
"""Put before every caption and reference by PAC-S and CLIP-S."""
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
MASK_MEAN, MASK_STD = 0.5, 0.26
"""How Alpha-CLIP scales masks of zeros and ones."""
LICENCE_NOT_STATED = "not stated by the original"
"""What a config says of weights whose authors state no licence."""
