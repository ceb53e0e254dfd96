// A name of a namespace is one type: two headers that define different structs of one name in one
// namespace compile, and the linker keeps the functions of only one of them. And a number of things
// has one printer, which knows that 1 is one thing.

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

/// The types that a header defines in the order of their lines: "reshard::dcp::Machine". The code
/// is formatted: what stands in a namespace begins a line, and its end is commented.
std::vector<std::string> types_in(std::istream& header) {
  static std::regex const opening(R"(namespace ([\w:]+) \{)");
  static std::regex const type(R"((struct|class|enum class) (alignas\(.*\) )?(\w+) ([^;]*)\{.*)");
  std::vector<std::string> spaces;
  std::vector<std::string> result;
  bool templated = false;
  for (std::string line; std::getline(header, line);) {
    std::smatch match;
    if (std::regex_match(line, match, opening)) spaces.push_back(match[1]);
    if (line.rfind("}  // namespace ", 0) == 0 && !spaces.empty()) spaces.pop_back();
    if (!templated && std::regex_match(line, match, type)) {
      std::string name;
      for (std::string const& space : spaces) name += space + "::";
      result.push_back(name + match[3].str());
    }
    templated = line.rfind("template <", 0) == 0;
  }
  return result;
}

TEST(Names, ATypeIsDefinedInOneHeader) {
  std::map<std::string, std::string> defined;
  for (char const* folder : {"core", "stages", "pipeline"})
    for (auto const& entry :
         fs::recursive_directory_iterator(fs::path(RESHARD_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".hpp") continue;
      std::ifstream header(entry.path());
      for (std::string const& name : types_in(header)) {
        auto const [first, added] = defined.emplace(name, entry.path().string());
        EXPECT_TRUE(added) << name << " is defined in " << first->second << " and in "
                           << entry.path().string() << ": rename one of them";
      }
    }
  EXPECT_GT(defined.size(), 500U);
}

TEST(Names, TypesAreFoundInText) {
  std::istringstream header(
      "namespace reshard {\nnamespace dcp {\nstruct A {\n  struct Inner {};\n};\nclass B final : public A {\n}  // namespace dcp\n"
      "enum class C { one };\nstruct Declared;\ntemplate <class T>\nstruct D {\n");
  EXPECT_EQ(types_in(header),
            (std::vector<std::string>{"reshard::dcp::A", "reshard::dcp::B", "reshard::C"}));
}

/// The string literals of a source, those that follow each other joined.
std::vector<std::string> literals_in(std::string const& source) {
  std::vector<std::string> literals;
  bool follows = false;  // only white space since the last literal
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source.compare(i, 2, "//") == 0) {
      i = std::min(source.find('\n', i), source.size());
    } else if (source[i] == '\'' && (i == 0 || std::isalnum(source[i - 1]) == 0)) {
      i = source.find('\'', i + (source[i + 1] == '\\' ? 3 : 2));
      follows = false;
    } else if (source[i] == '"') {
      if (!follows) literals.emplace_back();
      follows = true;
      for (++i; i < source.size() && source[i] != '"'; ++i) {
        literals.back() += source[i];
        if (source[i] == '\\') literals.back() += source[++i];
      }
    } else if (std::isspace(source[i]) == 0) {
      follows = false;
    }
    if (i >= source.size()) break;
  }
  return literals;
}

/// Numbers of things in the texts of a source that are not counted()
/// (core/base/tables/counted.hpp): "{} stored tensors". What is above 1 by its nature is none:
/// "more than {} files", "{} of the {} files".
std::vector<std::string> uncounted_in(std::string const& source) {
  static std::regex const number(
      R"re((\w+ )?(\w+ )?\{\} ((stored|logical|HDF5|other|source|target) )*)re"
      R"re((tensors|files|keys|objects|parameters|datasets|checkpoints|iterations|modules)\b)re");
  static std::regex const large(R"re((than|most|least|above|below|no|of the|of its) \{\})re");
  std::vector<std::string> found;
  for (std::string const& literal : literals_in(source)) {
    if (literal.find("{} ") == std::string::npos) continue;
    for (std::sregex_iterator one(literal.begin(), literal.end(), number), end; one != end; ++one)
      if (!std::regex_search(one->str(), large)) found.push_back(one->str());
  }
  return found;
}

TEST(Names, NumbersOfThingsAreCounted) {
  std::size_t files = 0;
  for (char const* folder : {"core", "stages", "pipeline"})
    for (auto const& entry :
         fs::recursive_directory_iterator(fs::path(RESHARD_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cpp") continue;
      ++files;
      std::ifstream source(entry.path());
      std::ostringstream text;
      text << source.rdbuf();
      for (std::string const& found : uncounted_in(text.str()))
        ADD_FAILURE() << entry.path().string() << ": \"" << found
                      << "\" prints \"1 files\": use counted() of core/base/tables/counted.hpp";
    }
  EXPECT_GT(files, 300U);
}

TEST(Names, UncountedNumbersAreFoundInText) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(uncounted_in(R"(fmt::format("holds {} tensors", n))"), Texts{"holds {} tensors"});
  EXPECT_EQ(uncounted_in("fail(\"has {} \"\n    \"stored tensors\", n)"),
            Texts{"has {} stored tensors"});
  EXPECT_EQ(uncounted_in(R"(("{} of {} files", a, b))"), Texts{"of {} files"});
  EXPECT_EQ(uncounted_in(R"(("more than {} files, {} of the {} keys, {} names files", a, b))"),
            Texts());
  EXPECT_EQ(uncounted_in(R"(("{} in {}", counted(a, "tensor"), b) // {} files)"), Texts());
}

}  // namespace
