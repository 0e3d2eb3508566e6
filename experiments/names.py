"""Names, titles and kinds of the zoo's models; none is built here."""

__all__ = ["NAMES", "TITLES", "kind_of"]

_TABLE = """\
convolutional: resnet50 ResNet50, densenet121 DenseNet121, xception Xception
convolutional: efficientnetb0 EfficientNetB0, convnexttiny ConvNeXtTiny
convolutional: mobilenetv3small MobileNetV3Small, inceptionv3 InceptionV3
convolutional: vgg16 VGG16, augmented augmented CNN
segmentation, detection: segformer SegFormer of MiT, deeplab DeepLabV3 of ResNet
segmentation, detection: retinanet RetinaNet of ResNet
mixed precision: bfloat16_cnn bfloat16 CNN, float16_cnn float16 CNN
mixed precision: float16_vit float16 ViT
transformer: bert BERT, gpt2 GPT-2, llama Llama, t5 T5, vit ViT, swin Swin
audio: whisper Whisper
recurrent: seq2seq LSTM seq2seq, gru bidirectional GRU, convlstm ConvLSTM2D
generative: autoencoder autoencoder, gan GAN, diffusion diffusion U-Net
small: unet 3D U-Net, small_cnn small CNN, small_transformer small transformer
"""
_LINES = [line.split(": ") for line in _TABLE.splitlines()]
_MODELS = [
    (kind, *one.split(" ", 1)) for kind, own in _LINES for one in own.split(", ")
]
_KINDS = {name: kind for kind, name, _ in _MODELS}

TITLES = {name: title for _, name, title in _MODELS}
NAMES = tuple(name for name, kind in _KINDS.items() if kind != "small")


def kind_of(name: str) -> str:
    """Return the kind of a model.

    Example:
        >>> kind_of("bert"), kind_of("small_cnn"), TITLES["gru"]
        ('transformer', 'small', 'bidirectional GRU')
    """
    return _KINDS[name]
