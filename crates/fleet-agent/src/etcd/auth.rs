//! Requests about roles and users (`Auth` of etcd's API).

use super::client::Etcd;
use super::connection::{CallError, LIMIT};
use super::proto::*;
use super::range::end_of;

/// Access that a role gives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Keys that a role may read or write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Grant {
    pub(crate) access: Access,
    /// One key, or the beginning of keys.
    pub(crate) key: String,
    pub(crate) is_prefix: bool,
}

impl Grant {
    fn to_permission(&self) -> Permission {
        let kind = match self.access {
            Access::Read => PermissionKind::Read,
            Access::Write => PermissionKind::Write,
        };
        let range_end = if self.is_prefix { end_of(self.key.as_bytes()) } else { Vec::new() };
        Permission { kind: kind.into(), key: self.key.clone().into_bytes(), range_end }
    }

    /// Whether a permission gives this access, alone or with the other one.
    fn is_in(&self, permission: &Permission) -> bool {
        let own = self.to_permission();
        let both = Permission { kind: PermissionKind::ReadWrite.into(), ..own.clone() };
        *permission == own || *permission == both
    }
}

impl Etcd {
    /// Names of all roles.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn roles(&self) -> Result<Vec<String>, CallError> {
        let answer: AuthNamesResponse = self.auth("/etcdserverpb.Auth/RoleList", &AuthRequest {}).await?;
        Ok(answer.names)
    }

    /// Names of all users.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn users(&self) -> Result<Vec<String>, CallError> {
        let answer: AuthNamesResponse = self.auth("/etcdserverpb.Auth/UserList", &AuthRequest {}).await?;
        Ok(answer.names)
    }

    /// Roles of a user.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn roles_of(&self, user: &str) -> Result<Vec<String>, CallError> {
        let request = AuthNameRequest { name: user.to_owned() };
        let answer: AuthNamesResponse = self.auth("/etcdserverpb.Auth/UserGet", &request).await?;
        Ok(answer.names)
    }

    /// Makes a role.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn add_role(&self, role: &str) -> Result<(), CallError> {
        self.auth::<AuthResponse>("/etcdserverpb.Auth/RoleAdd", &AuthNameRequest { name: role.to_owned() }).await?;
        Ok(())
    }

    /// Grants of a list that a role lacks, and the number of its permissions that are not in the list.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn lacking(&self, role: &str, grants: &[Grant]) -> Result<(Vec<Grant>, usize), CallError> {
        let request = AuthNameRequest { name: role.to_owned() };
        let answer: AuthRoleGetResponse = self.auth("/etcdserverpb.Auth/RoleGet", &request).await?;
        Ok(compare(grants, &answer.permissions))
    }

    /// Lets a role read or write keys.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn grant_keys(&self, role: &str, grant: &Grant) -> Result<(), CallError> {
        let request = RoleGrantRequest { name: role.to_owned(), permission: Some(grant.to_permission()) };
        self.auth::<AuthResponse>("/etcdserverpb.Auth/RoleGrantPermission", &request).await?;
        Ok(())
    }

    /// Makes a user, without a password if it is `None`.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn add_user(&self, user: &str, password: Option<&str>) -> Result<(), CallError> {
        let options = Some(UserAddOptions { no_password: password.is_none() });
        let password = password.unwrap_or_default().to_owned();
        let request = UserAddRequest { name: user.to_owned(), password, options };
        self.auth::<AuthResponse>("/etcdserverpb.Auth/UserAdd", &request).await?;
        Ok(())
    }

    /// Deletes a user.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn delete_user(&self, user: &str) -> Result<(), CallError> {
        self.auth::<AuthResponse>("/etcdserverpb.Auth/UserDelete", &AuthNameRequest { name: user.to_owned() }).await?;
        Ok(())
    }

    /// Gives a user a role.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn grant_role(&self, user: &str, role: &str) -> Result<(), CallError> {
        let request = UserGrantRequest { user: user.to_owned(), role: role.to_owned() };
        self.auth::<AuthResponse>("/etcdserverpb.Auth/UserGrantRole", &request).await?;
        Ok(())
    }

    /// Whether authentication is enabled. etcd 3.4 tells that by the way it refuses a wrong password alone.
    ///
    /// # Errors
    /// No answer.
    pub(crate) async fn is_auth_enabled(&self) -> Result<bool, CallError> {
        let request = AuthenticateRequest { name: "root".to_owned(), password: String::new() };
        match self.auth::<AuthenticateResponse>("/etcdserverpb.Auth/Authenticate", &request).await {
            Err(CallError::Refused { text, .. }) => Ok(!text.contains("authentication is not enabled")),
            Err(err) => Err(err),
            Ok(_) => Ok(true),
        }
    }

    /// Enables authentication.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn enable_auth(&self) -> Result<(), CallError> {
        self.auth::<AuthResponse>("/etcdserverpb.Auth/AuthEnable", &AuthRequest {}).await?;
        Ok(())
    }

    /// Disables authentication, as root by its password.
    ///
    /// # Errors
    /// No answer, or a refusal.
    pub(crate) async fn disable_auth(&mut self, password: &str) -> Result<(), CallError> {
        let request = AuthenticateRequest { name: "root".to_owned(), password: password.to_owned() };
        let answer: AuthenticateResponse = self.auth("/etcdserverpb.Auth/Authenticate", &request).await?;
        self.connection.set_token(Some(answer.token));
        let disabled = self.auth::<AuthResponse>("/etcdserverpb.Auth/AuthDisable", &AuthRequest {}).await;
        // Without authentication no token is valid.
        self.connection.set_token(None);
        disabled.map(drop)
    }

    async fn auth<A: prost::Message + Default>(
        &self,
        path: &'static str,
        request: &impl prost::Message,
    ) -> Result<A, CallError> {
        // Passwords are hashed for some 100 ms, more on a busy machine.
        self.connection.call(path, request, 5 * LIMIT).await.map_err(|err| self.named(err, path))
    }
}

/// Grants that are in no permission, and the number of permissions that are of no grant.
fn compare(grants: &[Grant], permissions: &[Permission]) -> (Vec<Grant>, usize) {
    let is_lacking = |grant: &&Grant| !permissions.iter().any(|permission| grant.is_in(permission));
    let is_other = |permission: &&Permission| !grants.iter().any(|grant| grant.is_in(permission));
    (grants.iter().filter(is_lacking).cloned().collect(), permissions.iter().filter(is_other).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_to_read_and_write_lacks_neither() {
        let grant = |access, key: &str, is_prefix| Grant { access, key: key.to_owned(), is_prefix };
        let grants = [grant(Access::Read, "/f/", true), grant(Access::Write, "/f/a", false)];
        let permission = |kind: PermissionKind, key: &str, end: &str| Permission {
            kind: kind.into(),
            key: key.into(),
            range_end: end.into(),
        };
        let all = permission(PermissionKind::ReadWrite, "/f/", "/f0");
        let one = permission(PermissionKind::ReadWrite, "/f/a", "");
        assert_eq!(compare(&grants, &[]), (grants.to_vec(), 0));
        assert_eq!(compare(&grants, &[all.clone(), one.clone()]), (Vec::new(), 0));
        let read = permission(PermissionKind::Read, "/f/a", "");
        assert_eq!(compare(&grants, &[all, read]), (vec![grants[1].clone()], 1));
        let both = [grant(Access::Read, "/f/a", false), grant(Access::Write, "/f/a", false)];
        assert_eq!(compare(&both, &[one]), (Vec::new(), 0));
    }
}
