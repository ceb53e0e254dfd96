# Divides source files into groups that can be compiled as one: awk -v most=24 -v root=FOLDER/ -f unity_groups.awk HEADER… SOURCE… prints "GROUP SOURCE" for each, in order.
# What two files have in their unnamed namespaces would meet there. So a group has no two files that define the same name there, and none that calls a function,
# or names a type, that another one defines there. Nor may one define what a header declares
# that another one includes. The code is formatted: what stands in a namespace begins a line, and its end is commented.

# All unqualified words of a line that are called or begin with a capital letter, as used by file `f`.
function note_uses(line, f,    before, word, after) {
  while (match(line, /[A-Za-z_][A-Za-z0-9_]*/)) {
    before = RSTART > 1 ? substr(line, RSTART - 1, 1) : ""
    word = substr(line, RSTART, RLENGTH)
    after = substr(line, RSTART + RLENGTH, 1)
    if (before !~ /[.>:]/ && (after == "(" || word ~ /^[A-Z]/)) used[f, word] = 1
    line = substr(line, RSTART + RLENGTH)
  }
}

# The name that a line at the left edge of an unnamed namespace defines, or "".
function defined_name(line) {
  sub(/^template <[^()]*> /, "", line)
  if (match(line, /^(TEST|TEST_F|TEST_P|INSTANTIATE_TEST_SUITE_P)\([A-Za-z0-9_]+, *[A-Za-z0-9_]+/)) return substr(line, 1, RLENGTH)
  if (line ~ /^(struct|class|union|using|enum|enum class) /) {
    sub(/^(struct|class|union|using|enum class|enum) /, "", line)
    match(line, /^[A-Za-z0-9_]+/)
    return substr(line, 1, RLENGTH)
  }
  if (!match(line, /[A-Za-z_][A-Za-z0-9_]* ?[({=;[]/)) return ""
  line = substr(line, RSTART, RLENGTH)
  match(line, /^[A-Za-z0-9_]+/)
  return substr(line, 1, RLENGTH)
}

# Notes the names that a header, and those that it includes, declare for file `f`.
function reach(f, header,    k) {
  if ((f, header) in seen) return
  seen[f, header] = 1
  for (k = 1; k <= names[header]; k++) reached[f, name[header, k]] = 1
  for (k = 1; k <= includes[header]; k++) reach(f, include[header, k])
}

function meet(a, b,    k) {
  for (k = 1; k <= names[a]; k++) if ((b, name[a, k]) in reached && !((a, name[a, k]) in reached)) return 1
  for (k = 1; k <= names[b]; k++) if ((a, name[b, k]) in reached && !((b, name[b, k]) in reached)) return 1
  if (index(space[a] "::", space[b] "::") != 1 && index(space[b] "::", space[a] "::") != 1) return 0
  for (k = 1; k <= names[a]; k++) if ((b, name[a, k]) in used || (b, name[a, k]) in own) return 1
  for (k = 1; k <= names[b]; k++) if ((a, name[b, k]) in used) return 1
  return 0
}

FNR == 1 {
  of_header = FILENAME ~ /\.hpp$/
  at = of_header ? substr(FILENAME, length(root) + 1) : ++files
  if (!of_header) file[at] = FILENAME
  unnamed = 0
}
/^#include "/ { split($0, words, "\""); include[at, ++includes[at]] = words[2] }
of_header { sub(/^\[\[[^]]*\]\] /, "") }
of_header && /^[A-Za-z]/ && !/^namespace / {
  found = defined_name($0)
  if (found != "") name[at, ++names[at]] = found
}
of_header { next }
/^\}  \/\/ namespace *$/ { unnamed = 0; next }
{ sub(/\/\/.*/, ""); sub(/^\[\[[^]]*\]\] /, "") }
/^namespace [A-Za-z0-9_:]+ \{/ { space[at] = space[at] (space[at] == "" ? "" : "::") $2; next }
/^namespace \{/ { unnamed = 1; next }
{ note_uses($0, at) }
/^#define / { found = $2; sub(/\(.*/, "", found); name[at, ++names[at]] = found; own[at, found] = 1 }
unnamed && /^[A-Za-z]/ && !/^namespace / {
  found = defined_name($0)
  if (found != "") { name[at, ++names[at]] = found; own[at, found] = 1 }
}

END {
  for (f = 1; f <= files; f++) for (k = 1; k <= includes[f]; k++) reach(f, include[f, k])
  for (f = 1; f <= files; f++) {
    for (g = 1; g <= groups; g++) {
      if (size[g] >= most) continue
      fits = 1
      for (k = 1; k <= size[g] && fits; k++) if (meet(f, member[g, k])) fits = 0
      if (fits) break
    }
    if (g > groups) groups = g
    size[g]++
    member[g, size[g]] = f
    print g, file[f]
  }
}
