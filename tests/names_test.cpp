// A name of a namespace is one type: two headers that define different structs of one name in one
// namespace compile, and the linker keeps the functions of only one of them.

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

}  // namespace
