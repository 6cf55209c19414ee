"""What trains and what does not, in which precision, and how it is kept on disk."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2_5_VLForConditionalGeneration

from vdr.errors import BadInput, DamagedArtefact
from vdr.models.lora import ADAPTER_CONFIG, ADAPTER_FILE
from vdr.models.student import PROJECTION_FILE, Seeds, Student, load_backbone
from vdr.study.sections.training import LoraSettings, TrainingSettings


def loss_of(student, processor):
    ids, _ = processor.page_ids(torch.tensor([[1, 4, 4]] * 2))
    features = [torch.randn(4, student.hidden, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    batch = student.page_batch(ids.tolist(), [(2, 2)] * 2, features)
    queries = student.query_batch([processor.query_ids("revenue 1997"), processor.query_ids("cost")])
    pages, query_vectors = student.encode([batch, queries])
    return (pages[0] @ query_vectors[0].T).amax(0).mean() - (pages[1] @ query_vectors[0].T).amax(0).mean()


@pytest.mark.parametrize("form", ["merged", "library", "peft"])
def test_only_adapters_and_projection_get_gradient(make_student, processor, form):
    lora = LoraSettings(rank=8, alpha=8, impl="peft", dropout=0.1) if form == "peft" else LoraSettings(rank=8, alpha=8)
    student = make_student(lora=lora, forward="lean" if form == "merged" else "library")
    student.train(True)
    loss_of(student, processor).backward()
    names = set(student.trainable())
    assert (
        len(names) == 2 * 2 * 7 + 2
    )  # A and B of seven layers in two decoder layers, weight and bias of the projection
    assert not any("visual" in name for name in names)
    for name, parameter in student.trainable().items():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    for name, parameter in student.backbone.named_parameters():
        if "lora_" not in name:
            assert parameter.grad is None, name
            assert not parameter.requires_grad, name
    assert not student.backbone.model.visual.training


def test_trainable_size_of_the_papers_student():
    """60.1M trainable parameters (WT App. E): rank 32 on all seven linear layers of the 3B tower, and a projection
    with bias.
    """
    width, inner, kv, layers, rank = 2048, 11008, 256, 36, 32
    shapes = [(width, width), (width, kv), (width, kv), (width, width), (width, inner), (width, inner), (inner, width)]
    adapters = layers * sum(rank * (a + b) for a, b in shapes)
    assert round((adapters + width * 128 + 128) / 1e6, 1) == 60.1


def test_bf16_backbone_keeps_fp32_where_it_trains(make_student, processor):
    student = make_student(forward="library", dtype="bfloat16", lora=LoraSettings(rank=8, alpha=8, impl="peft"))
    assert student.backbone.model.language_model.norm.weight.dtype == torch.bfloat16
    assert {p.dtype for p in student.trainable().values()} == {torch.float32}
    loss = loss_of(student, processor)
    assert loss.dtype == torch.float32
    loss.backward()


def test_a_bf16_copy_of_the_projection_does_not_learn_and_ours_does():
    """WT App. A: Adam steps of 5e-5 round away in a bf16 output layer initialised on ±0.022; fp32 master weights
    take them all.
    """
    width = 2048
    ours = torch.nn.Linear(width, 128)
    with torch.no_grad():
        ours.weight.uniform_(-0.022, 0.022, generator=torch.Generator().manual_seed(0))
    copied = copy.deepcopy(ours).to(torch.bfloat16)  # what modules_to_save makes of a bf16 model's layer
    shares = []
    for layer in (copied, ours):
        before = layer.weight.detach().clone()
        optimiser = torch.optim.AdamW(layer.parameters(), lr=5e-5, weight_decay=0.0)
        x = torch.randn(16, width, generator=torch.Generator().manual_seed(1)).to(layer.weight.dtype)
        for _ in range(20):
            optimiser.zero_grad()
            layer(x).float().square().sum().backward()
            optimiser.step()
        shares.append(float((layer.weight == before).double().mean()))
    assert shares[0] > 0.2  # more than a fifth after 20 steps here; the paper saw 43.6 % after 3,693
    assert shares[1] == 0.0


def test_saved_student_loads_with_equal_vectors_and_bytes(make_student, backbone_dir, processor, tmp_path):
    student = make_student()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        student.save(tmp_path / name)
    for file in (ADAPTER_FILE, ADAPTER_CONFIG, PROJECTION_FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    again = Student.load(tmp_path / "one", backbone_dir, student.settings)
    with torch.no_grad():
        assert torch.equal(loss_of(student, processor), loss_of(again, processor))


def test_peft_loads_what_we_save(make_student, backbone_dir, processor, tmp_path):
    from peft import PeftModel

    student = make_student()
    student.save(tmp_path)
    base = Qwen2_5_VLForConditionalGeneration.from_pretrained(backbone_dir)
    model = PeftModel.from_pretrained(base, tmp_path)
    loaded = {name.replace(".default", ""): p for name, p in model.named_parameters() if "lora_" in name}
    saved = load_file(tmp_path / ADAPTER_FILE)
    assert set(loaded) == set(saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    batch = student.query_batch([processor.query_ids("revenue 1997")])
    with torch.no_grad():
        theirs = model.base_model.model.model.language_model(input_ids=batch.ids, use_cache=False).last_hidden_state
        torch.testing.assert_close(student.hidden_states([batch])[0], theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape", "garbage"])
def test_checkpoint_with_wrong_keys_is_refused(make_student, backbone_dir, tmp_path, fault):
    student = make_student()
    student.save(tmp_path)
    file = tmp_path / ADAPTER_FILE
    tensors = load_file(file)
    first = sorted(tensors)[0]
    if fault == "missing":
        del tensors[first]
    elif fault == "unexpected":
        tensors["base_model.model.visual.lora_A.weight"] = torch.zeros(1)
    elif fault == "shape":
        tensors[first] = tensors[first][:, :-1].contiguous()
    save_file(tensors, file)
    if fault == "garbage":
        file.write_bytes(b"not a tensor file")
    with pytest.raises(
        DamagedArtefact,
        match={
            "missing": "1 missing keys",
            "unexpected": "1 unexpected keys",
            "shape": "has shape",
            "garbage": "cannot be read",
        }[fault],
    ):
        Student.load(tmp_path, backbone_dir, student.settings)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("use_rslora", True),
        ("use_dora", True),
        ("alpha_pattern", {"q_proj": 4}),
        ("rank_pattern", {"q_proj": 4}),
        ("bias", "all"),
        ("lora_bias", True),
        ("modules_to_save", ["lm_head"]),
        ("fan_in_fan_out", True),
        ("peft_type", "IA3"),
        ("layer_replication", [[0, 1]]),
        ("trainable_token_indices", [1]),
        ("init_lora_weights", "pissa"),
        ("a_field_of_a_later_version", True),
    ],
)
def test_an_adapter_that_asks_for_another_function_is_refused(make_student, backbone_dir, tmp_path, field, value):
    student = make_student()
    student.save(tmp_path)
    config = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(config | {field: value}))
    with pytest.raises(BadInput, match=rf"{ADAPTER_CONFIG}: {field} = .* is not honoured here"):
        Student.load(tmp_path, backbone_dir, student.settings)


def test_a_configuration_as_peft_writes_it_is_read(make_student, backbone_dir, processor, tmp_path):
    from peft import LoraConfig

    student = make_student()
    student.save(tmp_path)
    ours = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    LoraConfig(r=ours["r"], lora_alpha=ours["lora_alpha"], lora_dropout=0.1, target_modules=ours["target_modules"],
               init_lora_weights="gaussian", task_type="FEATURE_EXTRACTION").save_pretrained(tmp_path)  # fmt: skip
    assert json.loads((tmp_path / ADAPTER_CONFIG).read_text()).keys() > ours.keys()
    again = Student.load(tmp_path, backbone_dir, student.settings)
    with torch.no_grad():
        assert torch.equal(loss_of(student, processor), loss_of(again, processor))


@pytest.mark.parametrize(
    ("field", "value"), [("r", "8"), ("r", 0), ("r", True), ("r", None), ("lora_alpha", "8"), ("lora_alpha", float("nan"))]
)
def test_rank_and_alpha_are_numbers(make_student, backbone_dir, tmp_path, field, value):
    student = make_student()
    student.save(tmp_path)
    config = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(config | {field: value}))
    with pytest.raises(DamagedArtefact, match=f"{field} is no "):
        Student.load(tmp_path, backbone_dir, student.settings)


@pytest.mark.parametrize("file", [ADAPTER_FILE, PROJECTION_FILE])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t.index_fill(0, torch.tensor([0]), float("nan")), "not finite"),
        (lambda t: t.index_fill(0, torch.tensor([0]), float("inf")), "not finite"),
        (lambda t: t.to(torch.int64), "not floating numbers"),
    ],
)
def test_tensors_that_are_no_weights_are_refused(make_student, backbone_dir, tmp_path, file, spoil, said):
    student = make_student()
    student.save(tmp_path)
    tensors = load_file(tmp_path / file)
    name = sorted(tensors)[0]
    save_file(tensors | {name: spoil(tensors[name])}, tmp_path / file)
    with pytest.raises(DamagedArtefact, match=f"{file}: {name} holds .*{said}"):
        Student.load(tmp_path, backbone_dir, student.settings)


def test_projection_of_another_width_is_refused(make_student, backbone_dir, tmp_path):
    student = make_student()
    student.save(tmp_path)
    save_file({"weight": torch.zeros(16, 31), "bias": torch.zeros(16)}, tmp_path / PROJECTION_FILE)
    with pytest.raises(DamagedArtefact, match="weight has shape"):
        Student.load(tmp_path, backbone_dir, student.settings)


def test_adapter_of_another_rank_is_refused(make_student, backbone_dir, tmp_path):
    student = make_student()
    student.save(tmp_path)
    with pytest.raises(BadInput, match="rank 8"):
        Student.load(tmp_path, backbone_dir, TrainingSettings(projection_dim=16))
    config = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    config["r"] = 4
    (tmp_path / ADAPTER_CONFIG).write_text(json.dumps(config))
    with pytest.raises(DamagedArtefact, match="has shape"):
        Student.load(tmp_path, backbone_dir, TrainingSettings(projection_dim=16, lora=LoraSettings(rank=4, alpha=8)))


def test_backbone_with_missing_weights_is_refused(backbone_dir, tmp_path):
    for file in backbone_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[next(name for name in sorted(tensors) if "q_proj.weight" in name)]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DamagedArtefact, match="1 missing keys"):
        load_backbone(tmp_path)
    with pytest.raises(BadInput, match=r"no Qwen2.5-VL checkpoint"):
        load_backbone(tmp_path / "nowhere")


def test_each_seed_moves_its_own_stream_alone(backbone_dir):
    settings = TrainingSettings(projection_dim=16, lora=LoraSettings(rank=8, alpha=8))

    def weights(**changed):
        seeds = Seeds.of({"order": 0, "lora": 0, "projection": 0, "dropout": 0, **changed})
        return {name: p.detach() for name, p in Student.create(backbone_dir, settings, seeds).trainable().items()}

    base = weights()
    for stream, part in (("lora", "lora_A"), ("projection", "projection")):
        other = weights(**{stream: 1})
        for name in base:
            assert torch.equal(base[name], other[name]) == (part not in name), (stream, name)
    order = weights(order=1, dropout=1)
    assert all(torch.equal(base[name], order[name]) for name in base)


def test_merged_and_peft_start_from_the_same_numbers(make_student):
    merged = make_student(adapted=False)
    theirs = make_student(adapted=False, forward="library", lora=LoraSettings(rank=8, alpha=8, impl="peft"))
    for (name, a), (other, b) in zip(merged.trainable().items(), theirs.trainable().items(), strict=True):
        assert name == other
        assert torch.equal(a, b), name
