"""Labels of the audit's measures, for tables and figures. `measures` computes them.

In the tables each is compared with its value on retrained models.
"""

from t3lib.tofu.metrics import Metric

# By name of the column.
AUDIT = {
    name: Metric(label, title, None, ("metrics", name), group)
    for name, group, label, title in (
        ("recognized_verbatim", "Recognized", "answer", "Recognized, as learned"),
        ("recognized_paraphrased", "Recognized", "paraphrase", "Recognized, answer paraphrased"),
        (
            "recognized_verbatim_rephrased",
            "Recognized",
            "answer, asked anew",
            "Recognized, question rephrased",
        ),
        ("recognized_paraphrased_rephrased", "Recognized", "both", "Recognized, both reworded"),
        ("recognized_one_shape", "Recognized", "in one shape", "Recognized, in one sentence shape"),
        ("auc", "Membership", "AUC", "Membership AUC"),
        ("auc_min_k", "Membership", "min-k", "Membership AUC, min-k"),
        ("exact_memorization", "Memorized", "exact", "Exact memorization"),
        ("extraction_strength", "Memorized", "strength", "Extraction strength"),
        ("greedy", "Written", "greedy", "ROUGE-L of the greedy answer"),
        ("sampled", "Written", "one sample", "ROUGE-L of one sample"),
        ("leak", "Written", "best sample", "ROUGE-L of the best sample"),
        ("facts", "Written", "facts", "Rows with every fact word in one sample"),
        ("forced_1", "Forced start", "1", "ROUGE-L after one given token"),
        ("forced_2", "Forced start", "2", "ROUGE-L after two given tokens"),
        ("forced_4", "Forced start", "4", "ROUGE-L after four given tokens"),
        ("forced_8", "Forced start", "8", "ROUGE-L after eight given tokens"),
    )
}

# Those that T3's ablations report beside `metrics.METRICS`.
HIDING = ("recognized_verbatim", "recognized_paraphrased", "auc")
