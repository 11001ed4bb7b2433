"""HTML reports on data and models, and the case study of the paper.

`write_report` collects the facts (facts.py) and fills a template with them (page.py, templates/).
`case_study` compares four normalizations for one user.
"""

from equipoise.report.facts import collect
from equipoise.report.page import render, write_case_study, write_report
from equipoise.report.users import CaseStudy, case_study

__all__ = ["CaseStudy", "case_study", "collect", "render", "write_case_study", "write_report"]
