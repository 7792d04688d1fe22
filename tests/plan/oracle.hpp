// Reads the tables of reference values.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace farhaul::plan {

/// The fields of each row but the first; an empty field is NaN.
inline std::vector<std::vector<double>> read_table(const std::string& name) {
    std::ifstream file(std::string(FARHAUL_TEST_DATA) + "/" + name);
    std::vector<std::vector<double>> rows;
    std::string line, field;
    std::getline(file, line);
    while (std::getline(file, line)) {
        std::istringstream fields(line);
        rows.emplace_back();
        while (std::getline(fields, field, ','))
            rows.back().push_back(field.empty() ? __builtin_nan("") : std::stod(field));
    }
    return rows;
}

}  // namespace farhaul::plan
