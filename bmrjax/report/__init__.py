"""Pages that explain a result: one file each, with charts, that needs no network.

What is on a page is said in plain data (`blocks`), by the module that knows the result; here it becomes HTML.
"""

from bmrjax.report.blocks import Chart as Chart
from bmrjax.report.blocks import Explorer as Explorer
from bmrjax.report.blocks import FactList as FactList
from bmrjax.report.blocks import Measure as Measure
from bmrjax.report.blocks import Notes as Notes
from bmrjax.report.blocks import Page as Page
from bmrjax.report.blocks import PathStep as PathStep
from bmrjax.report.blocks import Section as Section
from bmrjax.report.blocks import Table as Table
from bmrjax.report.page_file import check_page_name as check_page_name
from bmrjax.report.page_file import write_page as write_page
