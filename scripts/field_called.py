"""Hand-written calls of well-known models, in packages whose other models are found automatically."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from field_others import Call, add_class, called

# Local features of images.

for _name in ("HardNet", "HardNet8", "HyNet", "SOSNet", "TFeat"):
    add_class("kornia", "kornia.feature", _name, 8, 1, 32, 32, pretrained=False)
add_class("kornia", "kornia.feature", "KeyNet", 1, 1, 64, 64, pretrained=False)


@called("kornia:LoFTR")
def _loftr() -> Call:
    from kornia.feature import LoFTR

    images = {"image0": torch.rand(1, 1, 128, 128), "image1": torch.rand(1, 1, 128, 128)}
    return LoFTR(pretrained=None), (images,), {}


@called("kornia:LightGlue")
def _light_glue() -> Call:
    from kornia.feature import LightGlue

    size = torch.tensor([[256, 256]])
    points = {"keypoints": 256 * torch.rand(1, 100, 2), "descriptors": torch.rand(1, 100, 128)}
    images = {"image0": {**points, "image_size": size}, "image1": {**points, "image_size": size}}
    return LightGlue(features=None, weights=None, input_dim=128), (images,), {}


@called("kornia:DeDoDe")
def _dedode() -> Call:
    from kornia.feature import DeDoDe

    return DeDoDe("L", "B"), (torch.rand(1, 3, 112, 112),), {}


# Medical images.

_NETS = ("monai", "monai.networks.nets")
_VOLUME = {"spatial_dims": 3, "in_channels": 1}
_SMALL = (1, 1, 64, 64, 64)
_LEVELS = {"channels": (16, 32, 64), "strides": (2, 2, 2)}
add_class(*_NETS, "HoVerNet", 1, 3, 256, 256)
add_class(*_NETS, "ViT", *_SMALL, in_channels=1, img_size=(64,) * 3, patch_size=(16,) * 3)
add_class(*_NETS, "ViTAutoEnc", *_SMALL, in_channels=1, img_size=(64,) * 3, patch_size=(16,) * 3)
add_class(
    *(*_NETS, "MaskedAutoEncoderViT", *_SMALL),
    in_channels=1,
    img_size=(64,) * 3,
    patch_size=(16,) * 3,
)
add_class(*_NETS, "AutoEncoder", *_SMALL, **_VOLUME, out_channels=1, **_LEVELS)
add_class(
    *(*_NETS, "VarAutoEncoder", *_SMALL),
    spatial_dims=3,
    in_shape=(1, 64, 64, 64),
    out_channels=1,
    latent_size=16,
    **_LEVELS,
)
add_class(
    *(*_NETS, "FlexibleUNet", 1, 3, 64, 64),
    in_channels=3,
    out_channels=2,
    backbone="efficientnet-b0",
)
add_class(*_NETS, "RegUNet", *_SMALL, **_VOLUME, num_channel_initial=16, depth=3)
add_class(
    *(*_NETS, "GlobalNet", *_SMALL), image_size=[64] * 3, **_VOLUME, num_channel_initial=16, depth=3
)
add_class(
    *(*_NETS, "LocalNet", *_SMALL), **_VOLUME, num_channel_initial=16, extract_levels=(0, 1, 2)
)
add_class(*_NETS, "SegResNetVAE", *_SMALL, input_image_size=(64,) * 3)
add_class(*_NETS, "SENet154", *_SMALL, **_VOLUME)
add_class(*_NETS, "SEResNet50", *_SMALL, **_VOLUME)
add_class(*_NETS, "resnet50", *_SMALL, spatial_dims=3, n_input_channels=1)
add_class(*_NETS, "Generator", 1, 16, latent_shape=(16,), start_shape=(8, 8, 8), **_LEVELS)
add_class(*_NETS, "Classifier", *_SMALL, in_shape=(1, 64, 64, 64), classes=2, **_LEVELS)
add_class(*_NETS, "Regressor", *_SMALL, in_shape=(1, 64, 64, 64), out_shape=(2,), **_LEVELS)
add_class(*_NETS, "MILModel", 1, 4, 3, 64, 64, num_classes=2, pretrained=False)
add_class(
    *(*_NETS, "MultiScalePatchDiscriminator", 1, 1, 256, 256),
    num_d=2,
    num_layers_d=3,
    spatial_dims=2,
    channels=8,
    in_channels=1,
)
add_class(*_NETS, "MedNeXtS", *_SMALL, spatial_dims=3, in_channels=1, out_channels=2)


@called("monai:VoxelMorph")
def _voxel_morph() -> Call:
    from monai.networks.nets import VoxelMorph

    return VoxelMorph(), (torch.rand(_SMALL), torch.rand(_SMALL)), {}


@called("monai:ControlNet")
def _controlnet() -> Call:
    from monai.networks.nets import ControlNet

    model = ControlNet(spatial_dims=2, in_channels=1, conditioning_embedding_in_channels=1)
    image = torch.rand(1, 1, 32, 32)
    return model, (image, torch.tensor([10]), torch.rand(1, 1, 256, 256)), {}


@called("monai:DecoderOnlyTransformer")
def _decoder() -> Call:
    from monai.networks.nets import DecoderOnlyTransformer

    sizes = {"attn_layers_dim": 96, "attn_layers_depth": 4, "attn_layers_heads": 8}
    model = DecoderOnlyTransformer(num_tokens=256, max_seq_len=64, **sizes)
    return model, (torch.arange(32)[None],), {}


@called("monai:VISTA3D")
def _vista() -> Call:
    from monai.networks.nets import vista3d132

    return vista3d132(), (torch.rand(_SMALL),), {"class_vector": torch.tensor([[1]])}


@called("monai:DiNTS")
def _dints() -> Call:
    from monai.networks.nets import DiNTS, TopologySearch

    space = TopologySearch(channel_mul=0.5, num_blocks=4, num_depths=3, use_downsample=True)
    return DiNTS(dints_space=space, in_channels=1, num_classes=2), (torch.rand(_SMALL),), {}


# Speech.


@called("speechbrain:BranchformerEncoder")
def _branchformer() -> Call:
    from speechbrain.lobes.models.transformer.Branchformer import BranchformerEncoder
    from speechbrain.nnet.attention import RelPosEncXL

    sound = torch.rand(1, 100, 256)
    model = BranchformerEncoder(num_layers=6, d_model=256, nhead=4)
    return model, (sound,), {"pos_embs": RelPosEncXL(256)(sound)}


@called("speechbrain:Tacotron2.Tacotron2")
def _tacotron() -> Call:
    from speechbrain.lobes.models.Tacotron2 import Tacotron2

    text, mel = torch.arange(5, 25)[None], torch.rand(1, 80, 50)
    return Tacotron2(), ((text, torch.tensor([20]), mel, 50, torch.tensor([50])),), {}


@called("speechbrain:MaskNet")
def _conv_tasnet() -> Call:
    from speechbrain.lobes.models.conv_tasnet import MaskNet

    return MaskNet(256, 64, 128, 3, 4, 2, C=2), (torch.rand(1, 256, 200),), {}


@called("speechbrain:Dual_Path_Model")
def _dual_path() -> Call:
    from speechbrain.lobes.models.dual_path import Dual_Path_Model, SBRNNBlock

    inner, outer = SBRNNBlock(64, 64, 1), SBRNNBlock(64, 64, 1)
    model = Dual_Path_Model(64, 64, inner, outer, num_layers=2, K=50, num_spks=2)
    return model, (torch.rand(1, 64, 400),), {}


@called("speechbrain:Cnn14")
def _cnn14() -> Call:
    from speechbrain.lobes.models.Cnn14 import Cnn14

    return Cnn14(mel_bins=80, emb_dim=2048), (torch.rand(1, 101, 80),), {}


@called("speechbrain:FastSpeech2")
def _fast_speech() -> Call:
    module = importlib.import_module("speechbrain.lobes.models.FastSpeech2")
    sizes: dict[str, Any] = {
        "enc_num_layers": 4,
        "enc_num_head": 2,
        "enc_d_model": 384,
        "enc_ffn_dim": 1024,
        "enc_k_dim": 384,
        "enc_v_dim": 384,
        "enc_dropout": 0.1,
        "dec_num_layers": 4,
        "dec_num_head": 2,
        "dec_d_model": 384,
        "dec_ffn_dim": 1024,
        "dec_k_dim": 384,
        "dec_v_dim": 384,
        "dec_dropout": 0.1,
        "normalize_before": False,
        "ffn_type": "1dcnn",
        "ffn_cnn_kernel_size_list": [9, 1],
        "n_char": 40,
        "n_mels": 80,
        "postnet_embedding_dim": 512,
        "postnet_kernel_size": 5,
        "postnet_n_convolutions": 5,
        "postnet_dropout": 0.1,
        "padding_idx": 0,
        "dur_pred_kernel_size": 3,
        "pitch_pred_kernel_size": 3,
        "energy_pred_kernel_size": 3,
        "variance_predictor_dropout": 0.1,
    }
    return (
        module.FastSpeech2(**sizes),
        (torch.arange(5, 25)[None],),
        {
            "durations": torch.full((1, 20), 3),
            "pitch": torch.rand(1, 60),
            "energy": torch.rand(1, 60),
        },
    )


# Operators between functions.

_OPERATORS = ("neuraloperator", "neuralop.models")
_FIELD = {"in_channels": 3, "out_channels": 1, "hidden_channels": 32}
add_class(*_OPERATORS, "FNO", 1, 3, 64, 64, n_modes=(16, 16), **_FIELD)
add_class(*_OPERATORS, "TFNO", 1, 3, 64, 64, n_modes=(16, 16), **_FIELD, rank=0.1)
add_class(
    *(*_OPERATORS, "UNO", 1, 3, 64, 64),
    **_FIELD,
    uno_out_channels=[32, 64, 64, 32],
    uno_n_modes=[[8, 8]] * 4,
    channel_mlp_skip="linear",
    uno_scalings=[[1, 1], [0.5, 0.5], [1, 1], [2, 2]],
)


# Language models of torchtune.


def _decoder_of(family: str, name: str, num_tokens: int = 16) -> None:
    def make() -> Call:
        module = importlib.import_module(f"torchtune.models.{family}")
        with torch.device("meta"):
            model = getattr(module, name)()
            for each in model.modules():
                if hasattr(each, "rope_init"):  # as its recipes do
                    each.rope_init()
        return model, (torch.arange(10, 10 + num_tokens)[None],), {}

    called(f"torchtune:{name}")(make)


_decoder_of("t5", "t5_v1_1_xxl_encoder", 512)
_decoder_of("clip", "clip_text_vit_large_patch14", 77)
for _family, _name in (
    ("llama2", "llama2_7b"),
    ("llama3", "llama3_8b"),
    ("gemma", "gemma_2b"),
    ("gemma2", "gemma2_2b"),
    ("phi3", "phi3_mini"),
    ("qwen2", "qwen2_0_5b"),
    ("mistral", "mistral_7b"),
):
    _decoder_of(_family, _name)


# Segmentation of volumes, and of images of more than three bands.

_HEADS = ("Unet", "UnetPlusPlus", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus")
for _name in (*_HEADS, "Linknet", "MAnet"):
    add_class(
        *(*("segmentation_models_pytorch_3d",) * 2, _name, 1, 3, 64, 64, 64),
        encoder_name="resnet34",
        encoder_weights=None,
    )
for _name in (*_HEADS, "Linknet", "MAnet", "PAN"):
    add_class(
        *(*("torchseg",) * 2, _name, 1, 4, 256, 256),
        encoder_name="resnet34",
        encoder_weights=None,
        in_channels=4,
    )
