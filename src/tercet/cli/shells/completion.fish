# Completion of `tercet` in fish. In ~/.config/fish/config.fish: tercet --print-completion fish | source
function __tercet_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l found (tercet --complete fish $words[2..-1] "$current" 2>/dev/null)
    test (count $found) -gt 0; or return
    if test $found[1] = files
        set -l flag (string match -r -- '^--[a-z-]+=' "$current")
        for path in (__fish_complete_path (string replace -r -- '^--[a-z-]+=' '' "$current"))
            echo "$flag$path"
        end
    else
        printf '%s\n' $found[2..-1]
    end
end
complete -c tercet -f -a '(__tercet_complete)'
