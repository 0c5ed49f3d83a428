"""Which networks: what people train on phones, and what they would like to, from timm, torchvision and by hand.

The survey's are what the operators were chosen by; `OTHERS` are of the same kinds and were not looked at for that.

Images are 64 x 64 where a network takes any size: the operators are those of 224 x 224, and eager float64 is affordable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ondevice.contract.vocabulary import StepSpec

Kind = Literal["convolutional", "attention", "sequences", "vectors"]
OURS = "benchmarks.networks"


@dataclass(frozen=True)
class Network:
    """A name that `fedss export --model` takes, and the size of its images."""

    model: str
    kind: Kind = "convolutional"
    pixels: int = 64
    arguments: Mapping[str, object] = field(default_factory=dict)

    def spec(self) -> StepSpec:
        """Statistics of BatchNorm are given, as they are in networks that come with weights."""
        return StepSpec(
            self.model,
            image_shape=(3, self.pixels, self.pixels),
            architecture_arguments=self.arguments,
            batch_norm="frozen",
        )


CONVOLUTIONAL = """
    timm:mobilenetv2_100 timm:mobilenetv3_small_100 timm:mobilenetv3_large_100 timm:mobilenetv4_conv_small
    timm:efficientnet_lite0 timm:efficientnet_b0 timm:mnasnet_100 timm:fbnetc_100 timm:ghostnet_100 timm:regnetx_002
    timm:regnety_002 timm:resnet18 timm:resnet34 timm:resnet50 timm:resnet50_gn timm:convnext_atto timm:convnext_femto
    timm:convnext_pico timm:mobileone_s0 timm:repvit_m0_9 timm:poolformer_s12 timm:tinynet_e timm:lcnet_050
    timm:hardcorenas_a timm:mixnet_s timm:starnet_s1 timm:rexnet_100 timm:hgnetv2_b0 timm:ese_vovnet19b_dw
    timm:nf_resnet26 timm:mambaout_femto torchvision:squeezenet1_1 torchvision:shufflenet_v2_x0_5
    torchvision:mnasnet0_5 torchvision:densenet121 torchvision:resnet18 torchvision:mobilenet_v2
    torchvision:mobilenet_v3_small
"""
HYBRID = """
    timm:edgenext_xx_small timm:mobilevit_xxs timm:mobilevitv2_050 timm:efficientvit_b0 timm:mobilenetv4_hybrid_medium
    timm:fastvit_t8 timm:nextvit_small timm:pvt_v2_b0
"""
OF_ONE_SIZE = """
    timm:efficientformer_l1 timm:efficientformerv2_s0 timm:levit_128s timm:tiny_vit_5m_224
"""
OF_A_GIVEN_SIZE = """
    timm:deit_tiny_patch16_224 timm:vit_tiny_patch16_224 timm:mixer_s16_224 timm:resmlp_12_224 timm:gmlp_ti16_224
    timm:xcit_nano_12_p16_224 timm:cait_xxs24_224 timm:pit_ti_224
"""
SEQUENCES = "torch_encoder tied_decoder lstm gru embedding_bag bag_by_gather character_convolution"
HUGGING_FACE = "bert gpt2 albert distilbert llama"
VECTORS = "relu_layers gelu_layers"

SURVEYED: tuple[Network, ...] = (
    *(Network(f"{OURS}.vectors:{name}", "vectors") for name in VECTORS.split()),
    *(Network(f"{OURS}.sequences:{name}", "sequences") for name in SEQUENCES.split()),
    *(Network(f"{OURS}.hugging_face:{name}", "sequences") for name in HUGGING_FACE.split()),
    *(Network(name) for name in CONVOLUTIONAL.split()),
    Network("torchvision:googlenet", arguments={"aux_logits": False, "transform_input": False}),
    *(Network(name, "attention") for name in HYBRID.split()),
    *(Network(name, "attention", 224) for name in OF_ONE_SIZE.split()),
    *(Network(name, "attention", arguments={"img_size": 64}) for name in OF_A_GIVEN_SIZE.split()),
    Network("timm:swin_tiny_patch4_window7_224", "attention", arguments={"img_size": 64, "window_size": 4}),
)

MORE_CONVOLUTIONAL = """
    timm:mobilenetv1_100 timm:semnasnet_075 timm:efficientnet_es timm:cspresnet50 timm:dla34 timm:res2net50_26w_4s
    timm:darknet53 timm:convnextv2_atto timm:seresnext26t_32x4d timm:skresnet18 timm:ecaresnet26t timm:dpn48b
    torchvision:alexnet torchvision:vgg11 torchvision:efficientnet_v2_s torchvision:regnet_y_400mf
"""
OTHERS: tuple[Network, ...] = (
    *(Network(name) for name in MORE_CONVOLUTIONAL.split()),
    Network("timm:inception_v3", pixels=96),
    Network("timm:davit_tiny", "attention"),
    Network("timm:coatnet_pico_rw_224", "attention", arguments={"img_size": 64}),
    Network("timm:crossvit_tiny_240", "attention", 240),
    Network("timm:coat_lite_tiny", "attention", arguments={"img_size": 64}),
    Network("timm:twins_svt_small", "attention", arguments={"img_size": 64}),
    Network("timm:volo_d1_224", "attention", arguments={"img_size": 64}),
    Network("timm:sequencer2d_s", "attention"),
    Network("torchvision:swin_v2_t", "attention"),
)
KNOWN = {network.model: network for network in (*SURVEYED, *OTHERS)}
