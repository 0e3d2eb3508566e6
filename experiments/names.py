"""Names, titles and kinds of the zoo's models; none is built here."""

from collections.abc import Mapping

__all__ = ["KINDS", "NAMES", "OF_KERAS_HUB", "SMALL_NAMES", "TITLES", "kind_of"]

KINDS: Mapping[str, tuple[str, ...]] = {
    "convolutional": (
        "resnet50",
        "densenet121",
        "xception",
        "efficientnetb0",
        "convnexttiny",
        "mobilenetv3small",
        "inceptionv3",
        "vgg16",
        "augmented",
    ),
    "segmentation, detection": ("segformer", "deeplab", "retinanet"),
    "mixed precision": ("bfloat16_cnn", "float16_cnn", "float16_vit"),
    "transformer": ("bert", "gpt2", "llama", "t5", "vit", "swin"),
    "audio": ("whisper",),
    "recurrent": ("seq2seq", "gru", "convlstm"),
    "generative": ("autoencoder", "gan", "diffusion"),
}

NAMES = tuple(name for names in KINDS.values() for name in names)
OF_KERAS_HUB = (
    *KINDS["segmentation, detection"],
    *KINDS["transformer"],
    *KINDS["audio"],
)
SMALL_NAMES = ("small_cnn", "small_transformer", "unet")

TITLES: Mapping[str, str] = {
    "resnet50": "ResNet50",
    "densenet121": "DenseNet121",
    "xception": "Xception",
    "efficientnetb0": "EfficientNetB0",
    "convnexttiny": "ConvNeXtTiny",
    "mobilenetv3small": "MobileNetV3Small",
    "inceptionv3": "InceptionV3",
    "vgg16": "VGG16",
    "augmented": "augmented CNN",
    "segformer": "SegFormer of MiT",
    "deeplab": "DeepLabV3 of ResNet",
    "retinanet": "RetinaNet of ResNet",
    "bert": "BERT",
    "gpt2": "GPT-2",
    "llama": "Llama",
    "t5": "T5",
    "vit": "ViT",
    "swin": "Swin",
    "whisper": "Whisper",
    "seq2seq": "LSTM seq2seq",
    "gru": "bidirectional GRU",
    "convlstm": "ConvLSTM2D",
    "autoencoder": "autoencoder",
    "gan": "GAN",
    "diffusion": "diffusion U-Net",
    "bfloat16_cnn": "bfloat16 CNN",
    "float16_cnn": "float16 CNN",
    "float16_vit": "float16 ViT",
    "unet": "3D U-Net",
    "small_cnn": "small CNN",
    "small_transformer": "small transformer",
}


def kind_of(name: str) -> str:
    """The kind of a model.

    Example:
        >>> kind_of("bert"), kind_of("small_cnn")
        ('transformer', 'small')
    """
    return next((kind for kind, names in KINDS.items() if name in names), "small")
