"""A lean forward and backward pass of Qwen2.5-VL's language tower for frozen weights plus adapters.

Same weights, same mathematics as transformers' `Qwen2_5_VLTextModel` (a test holds the two to 1e-5 in values and
gradients); what differs is the work: the tokens of all sequences of a step lie back to back in one matrix `x [N,
H]`, so that every linear layer is one product without padding waste; the rotary embedding is one complex product
(the rows of the query and key weights are permuted so that each rotated pair is adjacent); the RMSNorm gains are
folded into the weights that follow; tokens that all sequences of a group share (a page's prompt before its image)
are computed once; and the backward pass is written out, so that nothing is computed for frozen weights beyond what
the adapters need.

What surrounds the products (norms, SwiGLU, attention) is done by small compiled kernels (`kernels/csrc/decoder.c`) where there is a
C compiler, otherwise by torch: the same within rounding, slower.

Legend: N tokens of a step, H width, E = heads × head width, G = query heads per key head, B sequences of a group, L
their length.
"""

from __future__ import annotations

from vdr.models.fast.shapes import Group, Layer, Shape, merge_layer, rotary_angles, text_shape
from vdr.models.fast.tower import lean_forward

__all__ = ["Group", "Layer", "Shape", "lean_forward", "merge_layer", "rotary_angles", "text_shape"]
