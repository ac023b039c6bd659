"""The papers of the metrics: their BibTeX entries, by address."""

from __future__ import annotations

BIBTEX: dict[str, str] = {
    "https://arxiv.org/abs/2303.12112": """\
@inproceedings{sarto2023positive,
  title     = {Positive-Augmented Contrastive Learning for Image and Video Captioning Evaluation},
  author    = {Sarto, Sara and Barraco, Manuele and Cornia, Marcella and Baraldi, Lorenzo and Cucchiara,
               Rita},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition},
  year      = {2023}
}""",
    "https://arxiv.org/abs/2104.08718": """\
@inproceedings{hessel2021clipscore,
  title     = {{CLIPScore}: A Reference-free Evaluation Metric for Image Captioning},
  author    = {Hessel, Jack and Holtzman, Ari and Forbes, Maxwell and Le Bras, Ronan and Choi, Yejin},
  booktitle = {Proceedings of the 2021 Conference on Empirical Methods in Natural Language Processing},
  year      = {2021}
}""",
    "https://doi.org/10.1145/3664647.3681358": """\
@inproceedings{zeng2024hicescore,
  title     = {{HICEScore}: A Hierarchical Metric for Image Captioning Evaluation},
  author    = {Zeng, Zequn and Sun, Jianqiao and Zhang, Hao and Wen, Tiansheng and Su, Yudi and Xie, Yan and
               Wang, Zhengjue and Chen, Bo},
  booktitle = {Proceedings of the 32nd ACM International Conference on Multimedia},
  year      = {2024},
  doi       = {10.1145/3664647.3681358}
}""",
    "https://arxiv.org/abs/2106.14019": """\
@inproceedings{lee2021umic,
  title     = {{UMIC}: An Unreferenced Metric for Image Captioning via Contrastive Learning},
  author    = {Lee, Hwanhee and Yoon, Seunghyun and Dernoncourt, Franck and Bui, Trung and Jung, Kyomin},
  booktitle = {Proceedings of the 59th Annual Meeting of the Association for Computational Linguistics},
  year      = {2021},
  url       = {https://arxiv.org/abs/2106.14019}
}""",
    "https://aclanthology.org/2020.eval4nlp-1.4": """\
@inproceedings{lee2020vilbertscore,
  title     = {{ViLBERTScore}: Evaluating Image Caption Using Vision-and-Language {BERT}},
  author    = {Lee, Hwanhee and Yoon, Seunghyun and Dernoncourt, Franck and Kim, Doo Soon and Bui, Trung and
               Jung, Kyomin},
  booktitle = {Proceedings of the First Workshop on Evaluation and Comparison of NLP Systems},
  year      = {2020},
  url       = {https://aclanthology.org/2020.eval4nlp-1.4}
}""",
    "https://arxiv.org/abs/2405.01028": """\
@inproceedings{jeong2024eco,
  title     = {Technical Report of {NICE} Challenge at {CVPR} 2024: Caption Re-ranking Evaluation Using
               Ensembled {CLIP} and Consensus Scores},
  author    = {Jeong, Kiyoon and Lee, Woojun and Nam, Woongchan and Ma, Minjeong and Kang, Pilsung},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition Workshops},
  pages     = {7366--7372},
  year      = {2024}
}""",
    "https://aclanthology.org/P02-1040": """\
@inproceedings{papineni2002bleu,
  title     = {{BLEU}: a Method for Automatic Evaluation of Machine Translation},
  author    = {Papineni, Kishore and Roukos, Salim and Ward, Todd and Zhu, Wei-Jing},
  booktitle = {Proceedings of the 40th Annual Meeting of the Association for Computational Linguistics},
  year      = {2002}
}""",
    "https://aclanthology.org/W04-1013": """\
@inproceedings{lin2004rouge,
  title     = {{ROUGE}: A Package for Automatic Evaluation of Summaries},
  author    = {Lin, Chin-Yew},
  booktitle = {Text Summarization Branches Out},
  year      = {2004}
}""",
    "https://arxiv.org/abs/1411.5726": """\
@inproceedings{vedantam2015cider,
  title     = {{CIDEr}: Consensus-based Image Description Evaluation},
  author    = {Vedantam, Ramakrishna and Zitnick, C. Lawrence and Parikh, Devi},
  booktitle = {Proceedings of the IEEE Conference on Computer Vision and Pattern Recognition},
  year      = {2015}
}""",
}
