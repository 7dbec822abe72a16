# Completion of `tercet` in bash. In ~/.bashrc: eval "$(tercet --print-completion bash)"
_tercet() {
    local kind word
    COMPREPLY=()
    {
        IFS= read -r kind
        while IFS=$'\t' read -r word _; do COMPREPLY+=("$word"); done
    } < <(tercet --complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    [[ $kind == files ]] && return # readline completes names of files
    compopt +o default 2>/dev/null
    [[ $kind == paths ]] && compopt -o filenames 2>/dev/null
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _tercet tercet
