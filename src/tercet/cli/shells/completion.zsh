#compdef tercet
# Completion of `tercet` in zsh. In ~/.zshrc, behind compinit: eval "$(tercet --print-completion zsh)"
_tercet() {
    local kind word about
    local -a whole begun shown_whole shown_begun
    {
        IFS= read -r kind
        while IFS=$'\t' read -r word about; do
            if [[ $word == *[=./] ]]; then
                begun+=("$word") shown_begun+=("$word${about:+  -- $about}")
            else
                whole+=("$word") shown_whole+=("$word${about:+  -- $about}")
            fi
        done
    } < <(tercet --complete zsh "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    if [[ $kind == files ]]; then
        compset -P '--*='
        _files
        return
    fi
    local -a as_paths
    [[ $kind == paths ]] && as_paths=(-f)
    (( ${#whole} )) && compadd $as_paths -l -d shown_whole -- "${whole[@]}"
    (( ${#begun} )) && compadd $as_paths -S '' -d shown_begun -- "${begun[@]}"
    return 0
}
compdef _tercet tercet
