"""The tensors of SAM's releases: names and shapes, to build checkpoints as they are distributed."""

from __future__ import annotations

from typing import Any

Manifest = dict[str, Any]


def decoder(width: int = 256, mlp: int = 2048, hidden: int = 256, masks: int = 4) -> Manifest:
    """Prompt encoder and mask decoder, by default of the size that every release has."""
    shapes: dict[str, list[int]] = {}
    prompt, head = "prompt_encoder", "mask_decoder"
    shapes[f"{prompt}.pe_layer.positional_encoding_gaussian_matrix"] = [2, width // 2]
    for name in ("not_a_point_embed", "no_mask_embed", *(f"point_embeddings.{i}" for i in range(4))):
        shapes[f"{prompt}.{name}.weight"] = [1, width]
    for place, size in ((0, [4, 1, 2, 2]), (1, [4]), (3, [16, 4, 2, 2]), (4, [16]), (6, [width, 16, 1, 1])):
        shapes[f"{prompt}.mask_downscaling.{place}.weight"] = size
        shapes[f"{prompt}.mask_downscaling.{place}.bias"] = size[:1]

    def linear(name: str, wide_in: int, wide_out: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = [wide_out, wide_in], [wide_out]

    def attention(name: str, inner: int) -> None:
        for part in "qkv":
            linear(f"{name}.{part}_proj", width, inner)
        linear(f"{name}.out_proj", inner, width)

    def norm(name: str, wide: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = [wide], [wide]

    for layer in (f"{head}.transformer.layers.{i}" for i in range(2)):
        attention(f"{layer}.self_attn", width)
        attention(f"{layer}.cross_attn_token_to_image", width // 2)
        attention(f"{layer}.cross_attn_image_to_token", width // 2)
        linear(f"{layer}.mlp.lin1", width, mlp)
        linear(f"{layer}.mlp.lin2", mlp, width)
        for i in range(1, 5):
            norm(f"{layer}.norm{i}", width)
    attention(f"{head}.transformer.final_attn_token_to_image", width // 2)
    norm(f"{head}.transformer.norm_final_attn", width)
    shapes[f"{head}.iou_token.weight"] = [1, width]
    shapes[f"{head}.mask_tokens.weight"] = [masks, width]
    for place, size in ((0, [width, width // 4, 2, 2]), (3, [width // 4, width // 8, 2, 2])):
        shapes[f"{head}.output_upscaling.{place}.weight"] = size
        shapes[f"{head}.output_upscaling.{place}.bias"] = size[1:2]
    norm(f"{head}.output_upscaling.1", width // 4)
    for name, inner, last in (
        *((f"output_hypernetworks_mlps.{i}", width, width // 8) for i in range(masks)),
        ("iou_prediction_head", hidden, masks),
    ):
        linear(f"{head}.{name}.layers.0", width, inner)
        linear(f"{head}.{name}.layers.1", inner, inner)
        linear(f"{head}.{name}.layers.2", inner, last)
    return {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}
