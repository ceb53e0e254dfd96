// A folder, a file and a struct fit into a head. What does not is listed with the reason, and with
// a bound that it does not pass. An entry that is not needed any more fails, too.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_files = 24;    // of a folder
constexpr std::size_t most_lines = 400;   // of a file
constexpr std::size_t most_members = 20;  // of a struct

/// What may be larger: up to `most`.
struct Exception {
  std::string_view what;
  std::size_t most;
  std::string_view why;
};

std::vector<Exception> const folders = {};

std::vector<Exception> const files = {
    {"core/base/text/yaml.cpp", 420, "one parser"},
    {"core/formats/megatron/headers/classify.cpp", 450, "one class that sorts a folder's files"},
    {"core/mapping/sides/side.cpp", 460, "one class: the names of one side"},
    {"core/mapping/maps/map_file.cpp", 410, "one class: every section of a map"},
    {"pipeline/verify/compare/side_catalogues.cpp", 430, "one class: every way to read two sides"},
    {"core/formats/huggingface/folder.cpp", 410, "every rule of which files are a folder's"},
    {"core/formats/huggingface/target.cpp", 405,
     "options of the format, and both ways to lay it out"},
    {"stages/plan/check/map_check.cpp", 480, "all checks of a map"},
    {"stages/plan/identity_plan.cpp", 430, "one class: jobs that keep names"},
    {"stages/plan/source/names/kept_tensors.cpp", 410, "every tensor that keeps its name"},
    {"stages/plan/source/catalog/source_catalog.cpp", 550,
     "one class: pieces of all stored tensors"},
    {"stages/plan/source/source_model.cpp", 450, "one class: what the headers state of a model"},
    {"stages/verify/replica_check.cpp", 420, "one comparison, of bytes and of digests"},
};

std::vector<Exception> const structs = {
    {"MapFile", 40, "the keys of a model map"},
    {"StreamThreads", 30, "what three threads share"},
};

std::string without_text_and_comments(std::string const& source) {
  static std::regex const removed(
      R"re(//[^\n]*|R"(\w*)\([^]*?\)\1"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)')re");
  return std::regex_replace(source, removed, " ");
}

/// A parenthesis that stands neither in an argument of a template nor in a value.
bool is_function(std::string statement) {
  static std::regex const arguments(R"(<[^<>]*>)");
  for (std::string before; before != statement;) {
    before = statement;
    statement = std::regex_replace(before, arguments, "");
  }
  return statement.substr(0, statement.find('=')).find('(') != std::string::npos;
}

/// Counts the data members of the structs and classes of a source, by name. Statements end at ';',
/// and what is in parentheses is not looked at.
std::map<std::string, std::size_t> members_in(std::string const& source) {
  static std::regex const type(R"((^|\s)(struct|class) (alignas )?(\w+)( final)?( ?:[^:].*)?\s*$)");
  static std::regex const no_member(
      R"(^(using|friend|static|typedef|enum|template|struct|class|explicit|virtual)\b)");
  static std::regex const access(R"(^((public|private|protected)\s*:\s*)+)");
  struct Block {
    std::string type;    ///< "" for another block
    std::string before;  ///< the statement that it is part of
    std::size_t members = 0;
  };
  std::map<std::string, std::size_t> found;
  std::vector<Block> open;
  std::string statement;
  int parentheses = 0;
  for (char const c : without_text_and_comments(source)) {
    if (c == ')') --parentheses;
    if (parentheses > 0 && c != '(') continue;
    if (c == '(') ++parentheses;
    std::smatch match;
    if (c == '{') {
      std::replace(statement.begin(), statement.end(), '\n', ' ');
      bool const is_type = statement.find('(') == std::string::npos &&
                           statement.find("enum ") == std::string::npos &&
                           std::regex_search(statement, match, type);
      open.push_back({is_type ? match[4].str() : "", is_type ? "" : statement});
      statement.clear();
    } else if (c == '}' && !open.empty()) {
      Block const block = open.back();
      open.pop_back();
      if (!block.type.empty()) found[block.type] = std::max(found[block.type], block.members);
      // A body ends its statement, an initial value does not.
      bool const is_value = block.type.empty() && block.before.find('(') == std::string::npos &&
                            block.before.find("namespace") == std::string::npos;
      statement = is_value ? block.before : "";
    } else if (c == ';') {
      statement.erase(0, statement.find_first_not_of(" \n"));
      statement = std::regex_replace(statement, access, "");
      bool const is_data = !is_function(statement) && !std::regex_search(statement, no_member);
      if (!open.empty() && !open.back().type.empty() && is_data && !statement.empty())
        ++open.back().members;
      statement.clear();
    } else {
      statement += c;
    }
  }
  return found;
}

struct Sizes {
  std::map<std::string, std::size_t> folders;
  std::map<std::string, std::size_t> files;
  std::map<std::string, std::size_t> structs;
};

Sizes const& sizes() {
  static Sizes const all = [] {
    Sizes found;
    fs::path const root = RESHARD_SOURCE_DIR;
    for (char const* folder : {"core", "stages", "pipeline"})
      for (auto const& entry : fs::recursive_directory_iterator(root / folder)) {
        std::string const ending = entry.path().extension().string();
        if (ending != ".hpp" && ending != ".cpp" && ending != ".cu" && ending != ".cuh") continue;
        fs::path const path = entry.path().lexically_relative(root);
        std::ostringstream text;
        text << std::ifstream(entry.path()).rdbuf();
        std::string const source = text.str();
        ++found.folders[path.parent_path().generic_string()];
        found.files[path.generic_string()] =
            static_cast<std::size_t>(std::count(source.begin(), source.end(), '\n'));
        for (auto const& [name, members] : members_in(source))
          found.structs[name] = std::max(found.structs[name], members);
      }
    return found;
  }();
  return all;
}

void expect_at_most(std::map<std::string, std::size_t> const& found, std::size_t most,
                    std::vector<Exception> const& exceptions) {
  EXPECT_GT(found.size(), 20U) << "the sources were not found";
  for (auto const& [what, size] : found) {
    auto const listed = std::ranges::find(exceptions, what, &Exception::what);
    EXPECT_LE(size, listed == exceptions.end() ? most : listed->most)
        << what << " has grown too large: cut it into subjects";
  }
  for (Exception const& one : exceptions) {
    auto const it = found.find(std::string(one.what));
    EXPECT_TRUE(it != found.end() && it->second > most)
        << one.what << " (" << one.why << ") is no exception any more: remove its line";
  }
}

TEST(Sizes, AFolderHasFewFiles) { expect_at_most(sizes().folders, most_files, folders); }

TEST(Sizes, AFileHasFewLines) { expect_at_most(sizes().files, most_lines, files); }

TEST(Sizes, AStructHasFewMembers) { expect_at_most(sizes().structs, most_members, structs); }

TEST(Sizes, MembersAreCountedInText) {
  auto const found = members_in(
      "namespace reshard {\nstruct A {\n  int a = 0;  // b; c;\n  std::map<int, char> b{};\n"
      "  std::function<void(int)> c;\n  int function(int x) const { return x; }\n"
      "  static constexpr int none = 1;\n  using B = int;\n};\n"
      "class D final : public A {\n public:\n  D() = default;\n  explicit D(int x) : A(), e_(x) {}\n"
      " private:\n  int e_;\n  struct Inner {\n    int f;\n    int g = {};\n  } inner_;\n};\n"
      "enum class E { one, two };\n}  // namespace reshard\n");
  EXPECT_EQ(found, (std::map<std::string, std::size_t>{{"A", 3}, {"D", 2}, {"Inner", 2}}));
}

}  // namespace
