"""Names, titles and kinds of the zoo's models; none is built here."""

from collections.abc import Mapping

__all__ = ["NAMES", "TITLES", "kind_of"]

_KINDS: Mapping[str, Mapping[str, str]] = {
    "convolutional": {
        "resnet50": "ResNet50",
        "densenet121": "DenseNet121",
        "xception": "Xception",
        "efficientnetb0": "EfficientNetB0",
        "convnexttiny": "ConvNeXtTiny",
        "mobilenetv3small": "MobileNetV3Small",
        "inceptionv3": "InceptionV3",
        "vgg16": "VGG16",
        "augmented": "augmented CNN",
    },
    "segmentation, detection": {
        "segformer": "SegFormer of MiT",
        "deeplab": "DeepLabV3 of ResNet",
        "retinanet": "RetinaNet of ResNet",
    },
    "mixed precision": {
        "bfloat16_cnn": "bfloat16 CNN",
        "float16_cnn": "float16 CNN",
        "float16_vit": "float16 ViT",
    },
    "transformer": {
        "bert": "BERT",
        "gpt2": "GPT-2",
        "llama": "Llama",
        "t5": "T5",
        "vit": "ViT",
        "swin": "Swin",
    },
    "audio": {"whisper": "Whisper"},
    "recurrent": {
        "seq2seq": "LSTM seq2seq",
        "gru": "bidirectional GRU",
        "convlstm": "ConvLSTM2D",
    },
    "generative": {
        "autoencoder": "autoencoder",
        "gan": "GAN",
        "diffusion": "diffusion U-Net",
    },
    "small": {
        "unet": "3D U-Net",
        "small_cnn": "small CNN",
        "small_transformer": "small transformer",
    },
}
TITLES = {name: title for own in _KINDS.values() for name, title in own.items()}
NAMES = tuple(name for name in TITLES if name not in _KINDS["small"])


def kind_of(name: str) -> str:
    """The kind of a model.

    Example:
        >>> kind_of("bert"), kind_of("small_cnn")
        ('transformer', 'small')
    """
    return next(kind for kind, own in _KINDS.items() if name in own)
