"""The lean forward, transformers' forward and peft's are one function; padding, batches and shared prefixes do not
matter.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from vdr.errors import BadInput
from vdr.models import fast
from vdr.models.fast.attention import TorchAttention, attention
from vdr.models.fast.pointwise import norm, norm_backward, swiglu
from vdr.models.student import single_vector
from vdr.models.student.forward import embed
from vdr.study.sections.training import LoraSettings

GRIDS = [(3, 4), (3, 4), (3, 4)]


def pages(student, processor, grids=GRIDS, seed=1):
    generator = torch.Generator().manual_seed(seed)
    merge = student.merge
    ids = []
    for h, w in grids:
        tokens, _ = processor.page_ids(torch.tensor([[1, h * merge, w * merge]]))
        ids.append(tokens[0].tolist())
    features = [torch.randn(h * w, student.hidden, generator=generator) for h, w in grids]
    return student.page_batch(ids, grids, features)


def queries(student, processor):
    texts = [
        "revenue 1997",
        "which page shows the total cost of region north",
        "who",
        "revenue of the north in 1997",
        "cost",
    ]
    return student.query_batch([processor.query_ids(text) for text in texts])


@pytest.mark.parametrize("grids", [GRIDS, [(3, 4), (2, 5), (4, 4)]])
def test_lean_equals_the_library_in_values_and_gradients(make_student, processor, grids, path):
    lean, library = make_student(), make_student(forward="library")
    results = []
    for student in (lean, library):
        batches = [pages(student, processor, grids), queries(student, processor)]
        vectors = student.encode(batches)
        generator = torch.Generator().manual_seed(3)
        loss = sum(
            (v * torch.randn(v.shape, generator=generator) * b.mask[..., None]).sum()
            for v, b in zip(vectors, batches, strict=True)
        )
        loss.backward()
        results.append((vectors, {name: p.grad for name, p in student.trainable().items()}))
    for a, b in zip(results[0][0], results[1][0], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    for name, gradient in results[0][1].items():
        other = results[1][1][name]
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(gradient, other, atol=2e-5 * float(other.abs().max()) + 1e-7, rtol=0, msg=name)


def test_hidden_states_equal_the_librarys_text_model(make_student, processor):
    """Before the projection, against `Qwen2_5_VLTextModel` itself, on adapters at zero."""
    student = make_student(adapted=False)
    batch = pages(student, processor)
    with torch.no_grad():
        ours = student.hidden_states([batch])[0]
        x = embed(student.backbone, batch)
        theirs = student.backbone.model.language_model(
            inputs_embeds=x, position_ids=batch.positions.expand(3, -1, -1).transpose(0, 1), use_cache=False
        ).last_hidden_state
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_whole_model_forward_gives_the_same_vectors(make_student, processor):
    """Pixels to vectors: our vision path, embedding, positions and tower against one call of the library's own
    model.
    """
    student = make_student(adapted=False)
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (112, 224, 3), dtype=np.uint8)) for _ in range(3)]
    inputs = processor.pages(images)
    grids = [tuple(g) for g in processor.merged_grid(inputs.grid_thw).tolist()]
    batch = student.page_batch(inputs.input_ids.tolist(), grids, student.vision(inputs.pixel_values, inputs.grid_thw))
    with torch.no_grad():
        ours = student.encode([batch])[0]
        states = student.backbone.model(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, pixel_values=inputs.pixel_values,
            image_grid_thw=inputs.grid_thw, mm_token_type_ids=inputs.is_image.int(),
        ).last_hidden_state  # fmt: skip
        theirs = torch.nn.functional.normalize(student.projection(states), dim=-1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_left_padding_as_the_processor_makes_it_gives_the_same_query_vectors(make_student, processor):
    student = make_student(adapted=False)
    texts = ["revenue", "which page shows the total cost of region north"]
    batch = student.query_batch([processor.query_ids(text) for text in texts])
    left = processor.queries(texts)
    with torch.no_grad():
        ours = student.encode([batch])[0]
        positions = (left.attention_mask.cumsum(1) - 1).clamp(min=0)
        states = student.backbone.model.language_model(
            input_ids=left.input_ids, attention_mask=left.attention_mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        theirs = torch.nn.functional.normalize(student.projection(states), dim=-1)
    for row in range(2):
        torch.testing.assert_close(
            ours[row, batch.mask[row]], theirs[row, left.attention_mask[row].bool()], atol=1e-5, rtol=0
        )


def test_merged_adapters_equal_pefts_at_dropout_zero(make_student, processor):
    merged = make_student()
    theirs = make_student(forward="library", lora=LoraSettings(rank=8, alpha=8, impl="peft"), adapted=False)
    theirs.set_adapter(merged.adapter_state())
    for student in (merged, theirs):
        student.train(True)
    batches = [[pages(s, processor), queries(s, processor)] for s in (merged, theirs)]
    outputs = [s.encode(b) for s, b in zip((merged, theirs), batches, strict=True)]
    for output in outputs:
        (output[0].square().sum(0)[:, 0].sum() + output[1][:, :, 1].sum()).backward()
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    for (name, p), q in zip(merged.trainable().items(), theirs.trainable().values(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=2e-5 * float(q.grad.abs().max()) + 1e-7, rtol=0, msg=name)


def test_vectors_do_not_depend_on_the_batch(make_student, processor):
    student = make_student()
    together = pages(student, processor, [(3, 4), (2, 5), (3, 4), (3, 4)])
    q = queries(student, processor)
    with student.inference():
        all_pages, all_queries = student.encode([together, q])
        rows = together.is_image.sum(1).cumsum(0).tolist()
        for row in range(4):
            features = together.features[([0, *rows])[row] : rows[row]]
            grid = [(3, 4), (2, 5), (3, 4), (3, 4)][row]
            alone = student.page_batch([together.ids[row, together.mask[row]].tolist()], [grid], [features])
            torch.testing.assert_close(
                student.encode([alone])[0][0], all_pages[row, together.mask[row]], atol=2e-6, rtol=0
            )
        for row in range(5):
            alone = student.query_batch([q.ids[row, q.mask[row]].tolist()])
            torch.testing.assert_close(student.encode([alone])[0][0], all_queries[row, q.mask[row]], atol=2e-6, rtol=0)


def test_prefix_is_shared_and_equal_queries_still_encode(make_student, processor):
    student = make_student()
    assert pages(student, processor).prefix > 0
    same = student.query_batch([processor.query_ids("revenue 1997")] * 3)
    assert 0 < same.prefix < same.ids.shape[1]
    with student.inference():
        vectors = student.encode([same])[0]
    torch.testing.assert_close(vectors[0], vectors[2], atol=1e-6, rtol=0)


def test_vectors_are_unit_length_where_valid_and_zero_elsewhere(make_student, processor):
    student = make_student()
    batch = queries(student, processor)
    with student.inference():
        vectors = student.encode([batch])[0]
    norms = vectors.norm(dim=-1)
    torch.testing.assert_close(norms[batch.mask], torch.ones(int(batch.mask.sum())), atol=1e-5, rtol=0)
    assert not batch.mask.all()
    assert norms[~batch.mask].eq(0).all()


def test_single_vector_is_the_normalised_mean_of_valid_vectors():
    vectors = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    mask = torch.tensor([[True, True, False]])
    torch.testing.assert_close(single_vector(vectors, mask), torch.tensor([[0.5**0.5, 0.5**0.5]]))


def test_page_with_other_features_than_its_grid_is_refused(make_student, processor):
    student = make_student()
    ids, _ = processor.page_ids(torch.tensor([[1, 6, 8]]))
    with pytest.raises(BadInput, match="12 image tokens, grid 3×4, 11 features"):
        student.page_batch(ids.tolist(), [(3, 4)], [torch.zeros(11, student.hidden)])
    with pytest.raises(BadInput, match="empty sequence"):
        student.query_batch([[]])


@pytest.mark.parametrize("dim", [8, 16, 24, 32, 64, 40])
def test_kernels_equal_torch_at_every_head_width(compiled, dim, monkeypatch):
    """Prefixes, groups of several lengths, one head group a key head; 40 has no kernel and goes through torch on both sides."""
    shape = fast.Shape(heads=6, kv=2, dim=dim, eps=1e-6)
    groups = [fast.Group(0, 1, 3), fast.Group(3, 4, 19, 0), fast.Group(79, 2, 1), fast.Group(81, 1, 34)]
    generator = torch.Generator().manual_seed(dim)
    width, inner, rows = 40, 24, 115
    angles = torch.polar(torch.ones(rows, 1, dim // 2), torch.randn(rows, 1, dim // 2, generator=generator))
    sizes = [(10 * dim, width), (10 * dim,), (width, 6 * dim), (2 * inner, width), (width, inner)]
    tensors = [torch.randn(rows, width, generator=generator)] + [
        0.3 * torch.randn(*size, generator=generator) for size in sizes
    ]
    results = []
    for native in ("1", "0"):
        monkeypatch.setenv("VDR_NATIVE", native)
        x, *weights = [tensor.clone().requires_grad_(tensor.dim() > 1) for tensor in tensors]
        out = fast.lean_forward(x, [fast.Layer(*weights)] * 2, torch.ones(width), angles, groups, shape)
        (out * torch.arange(out.numel()).sin().view_as(out)).sum().backward()
        results.append([out.detach(), x.grad] + [w.grad for w in weights if w.grad is not None])
    assert len(results[0]) == 6
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5 * float(plain.abs().max()), rtol=0)


@pytest.mark.parametrize("length", [*range(1, 19), 31, 32, 33, 47, 48, 49])
def test_attention_kernel_equals_torch_at_every_length(compiled, length, monkeypatch):
    """Lengths around the sixteen keys that are computed together, with and without shared tokens before them."""
    shape = fast.Shape(heads=4, kv=2, dim=8, eps=1e-6)
    for before in (0, 1, 15, 16):
        groups = [fast.Group(0, 1, before)] if before else []
        groups.append(fast.Group(before, 2, length, 0 if before else None))
        rows = before + 2 * length
        generator = torch.Generator().manual_seed(length)
        qk, v = torch.randn(rows, 6, 8, generator=generator), torch.randn(rows, 16, generator=generator)
        grad = torch.randn(rows, 32, generator=generator)
        results = []
        for native in ("1", "0"):
            monkeypatch.setenv("VDR_NATIVE", native)
            by = attention(qk, groups, shape)
            results.append([by.forward(qk, v), *by.backward(grad.clone())])
        assert isinstance(by, TorchAttention)
        for ours, plain in zip(*results, strict=True):
            torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 7, 8, 9, 15, 16, 17, 40])
def test_norm_kernel_equals_torch_at_every_width(compiled, width, monkeypatch):
    generator = torch.Generator().manual_seed(width)
    x, grad, add = (torch.randn(3, width, generator=generator) for _ in range(3))
    results = []
    for native in ("1", "0"):
        monkeypatch.setenv("VDR_NATIVE", native)
        y, scale = norm(x, 1e-6)
        results.append([y, scale, norm_backward(grad.clone(), y, scale, add), norm_backward(grad.clone(), y, scale)])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)


def test_swiglu_kernel_at_the_ends_of_the_range(compiled):
    both = torch.cat([torch.linspace(-200, 200, 64).view(1, -1), torch.ones(1, 64)], 1)
    inner, sigmoid = swiglu(both)
    torch.testing.assert_close(sigmoid, torch.sigmoid(both[:, :64]), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(inner, torch.nn.functional.silu(both[:, :64]), atol=1e-6, rtol=1e-5)
