from isoexec_compiler.cli import main

main()
