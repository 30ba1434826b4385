"""Networks whose true answers are known before anyone asks: `vertex bench soundness`."""
