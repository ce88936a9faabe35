from benchmarks.reports import pages

pages.main()
