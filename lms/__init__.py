"""Train models larger than accelerator memory by swapping tensors to the host.

    from lms import LMSCallback
    model.fit(x, y, callbacks=[LMSCallback()])

`import lms` never imports TensorFlow: names that need it are loaded on first use.
"""
