"""A report on one's own data as a single page, and the paper's case study.

`write_report` collects everything into one plain dict (facts.py) and fills a template with it
(page.py, templates/). `case_study` puts four normalizations side by side for one user.
"""

from equipoise.report.facts import collect
from equipoise.report.page import render, write_case_study, write_report
from equipoise.report.users import CaseStudy, case_study

__all__ = ["CaseStudy", "case_study", "collect", "render", "write_case_study", "write_report"]
